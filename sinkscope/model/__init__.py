"""The lab language model and loading of any model. Importing this registers the lab model with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from sinkscope.model.attention import LabAttention
from sinkscope.model.config import LabConfig
from sinkscope.model.hub import SHIPPED, load, load_tokenizer
from sinkscope.model.lab import LabForCausalLM, LabModel

AutoConfig.register(LabConfig.model_type, LabConfig, exist_ok=True)
AutoModel.register(LabConfig, LabModel, exist_ok=True)
AutoModelForCausalLM.register(LabConfig, LabForCausalLM, exist_ok=True)

__all__ = ["SHIPPED", "LabAttention", "LabConfig", "LabForCausalLM", "LabModel", "load", "load_tokenizer"]
