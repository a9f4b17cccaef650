"""More or less attention weight on chosen tokens, exactly and without attention maps: one method per file."""

from sinkscope.interventions.reweigh.act import ACT as ACT
from sinkscope.interventions.reweigh.call import Call as Call
from sinkscope.interventions.reweigh.call import check_call as check_call
from sinkscope.interventions.reweigh.head_changes import CallEditor as CallEditor
from sinkscope.interventions.reweigh.head_changes import Change as Change
from sinkscope.interventions.reweigh.head_changes import Head as Head
from sinkscope.interventions.reweigh.head_changes import HeadChange as HeadChange
from sinkscope.interventions.reweigh.head_changes import InRows as InRows
from sinkscope.interventions.reweigh.head_changes import opening as opening
from sinkscope.interventions.reweigh.head_changes import required as required
from sinkscope.interventions.reweigh.reweigh import Reweigh as Reweigh
from sinkscope.interventions.reweigh.reweigh import check_factor as check_factor
from sinkscope.interventions.reweigh.saving import from_json as from_json
from sinkscope.interventions.reweigh.saving import keep as keep
from sinkscope.interventions.reweigh.saving import kept as kept
from sinkscope.interventions.reweigh.saving import load as load
from sinkscope.interventions.reweigh.saving import load_calibrated as load_calibrated
from sinkscope.interventions.reweigh.saving import release as release
from sinkscope.interventions.reweigh.saving import save_calibrated as save_calibrated
from sinkscope.interventions.reweigh.temperature import Temperature as Temperature
from sinkscope.interventions.reweigh.visual_redistribution import VisualRedistribution as VisualRedistribution
from sinkscope.interventions.reweigh.visual_redistribution import image_token as image_token
