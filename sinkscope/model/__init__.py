"""The lab language model, operations attached to other models, and loading of any model.

Importing this registers the lab model and attached models with the Auto classes, and attached attention with the
attention interface.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from sinkscope.model.attached import Attachment, attach, detach, register, trainable_only
from sinkscope.model.attention import LabAttention
from sinkscope.model.config import LabConfig
from sinkscope.model.hub import SHIPPED, blueprint, load, load_tokenizer
from sinkscope.model.lab import LabBlock, LabForCausalLM, LabModel
from sinkscope.model.positions import RelativeT5

AutoConfig.register(LabConfig.model_type, LabConfig, exist_ok=True)
AutoModel.register(LabConfig, LabModel, exist_ok=True)
AutoModelForCausalLM.register(LabConfig, LabForCausalLM, exist_ok=True)
register()

__all__ = [
    "SHIPPED",
    "Attachment",
    "LabAttention",
    "LabBlock",
    "LabConfig",
    "LabForCausalLM",
    "LabModel",
    "RelativeT5",
    "attach",
    "blueprint",
    "detach",
    "load",
    "load_tokenizer",
    "trainable_only",
]
