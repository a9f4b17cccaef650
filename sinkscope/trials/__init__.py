"""Arms compared with matched controls on the same texts: scores per text, paired intervals, one verdict, one file.

A kind of trial differs in the arms that it builds, and in nothing else.
"""

from sinkscope.trials.arm import REFERENCE as REFERENCE
from sinkscope.trials.arm import Arm as Arm
from sinkscope.trials.arm import OnePass as OnePass
from sinkscope.trials.arm import Reading as Reading
from sinkscope.trials.arm import Texts as Texts
from sinkscope.trials.arm import ThroughCache as ThroughCache
from sinkscope.trials.arm import Written as Written
from sinkscope.trials.arm import cached as cached
from sinkscope.trials.arm import transformers_quantized as transformers_quantized
from sinkscope.trials.arm import unchanged as unchanged
from sinkscope.trials.calibration import calibration_of as calibration_of
from sinkscope.trials.calibration import calibration_trial as calibration_trial
from sinkscope.trials.changes import changed as changed
from sinkscope.trials.changes import intervention_arm as intervention_arm
from sinkscope.trials.changes import matters as matters
from sinkscope.trials.choosing import Chosen as Chosen
from sinkscope.trials.choosing import Option as Option
from sinkscope.trials.choosing import choose_heads as choose_heads
from sinkscope.trials.choosing import passes as passes
from sinkscope.trials.eviction import eviction_trial as eviction_trial
from sinkscope.trials.eviction import policy_arms as policy_arms
from sinkscope.trials.feeding import Feed as Feed
from sinkscope.trials.feeding import feeding as feeding
from sinkscope.trials.feeding import stream_nll as stream_nll
from sinkscope.trials.folding import folded_heads as folded_heads
from sinkscope.trials.folding import folded_stream as folded_stream
from sinkscope.trials.methods import CALIBRATIONS as CALIBRATIONS
from sinkscope.trials.methods import CalibrationMethod as CalibrationMethod
from sinkscope.trials.methods import zero_tuning as zero_tuning
from sinkscope.trials.needles import Alphabet as Alphabet
from sinkscope.trials.needles import Asked as Asked
from sinkscope.trials.needles import Needles as Needles
from sinkscope.trials.needles import noise as noise
from sinkscope.trials.old_choices import StoredChoice as StoredChoice
from sinkscope.trials.old_choices import stored_choice as stored_choice
from sinkscope.trials.predictions import TextScores as TextScores
from sinkscope.trials.predictions import text_scores as text_scores
from sinkscope.trials.recall import Recalled as Recalled
from sinkscope.trials.recall import recalled as recalled
from sinkscope.trials.run import run as run
from sinkscope.trials.schemes import scheme_trial as scheme_trial
from sinkscope.trials.speed import Speed as Speed
from sinkscope.trials.speed import speeds as speeds
from sinkscope.trials.texts import Split as Split
from sinkscope.trials.texts import needed as needed
from sinkscope.trials.texts import split as split
from sinkscope.trials.trial import Trial as Trial
from sinkscope.trials.trial import load as load
from sinkscope.trials.words import TOLERANCE as TOLERANCE
from sinkscope.trials.words import Grade as Grade
from sinkscope.trials.words import explained as explained
from sinkscope.trials.words import grade as grade
