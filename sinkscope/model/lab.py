"""The lab language model: a transformers model whose attention operation is a value."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.output_capturing import capture_outputs

from sinkscope.attention import CATALOG, Learned, Visibility
from sinkscope.errors import InputError
from sinkscope.model.attention import LabAttention
from sinkscope.model.block import LabBlock
from sinkscope.model.config import LabConfig
from sinkscope.model.feedforward import DownProjection
from sinkscope.model.positions import Rotary


class LabPreTrainedModel(PreTrainedModel):
    """What the lab models share: configuration class, capabilities, initialisation."""

    config_class = LabConfig
    config: LabConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LabBlock"]  # noqa: RUF012  (the base class declares it so)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = False  # any other implementation would run softmax, whatever the operation is
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = {"hidden_states": LabBlock, "attentions": LabAttention}  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings and linear maps N(0, 2 / (5 · fan_in)); a SwiGLU's output N(0, 1 / (L² · width)); norms 1.

        Standard deviations are sqrt(2 / (5 · fan_in)) and 1 / (L · sqrt(width)), as in the paper's code
        (sail-sg/Attention-Sink, lit_gpt/model.py; catalogue section 8).
        """
        if isinstance(module, DownProjection):
            std = module.in_features**-0.5 / self.config.num_hidden_layers
            init.normal_(module.weight, mean=0.0, std=std)
        elif isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=(2 / (5 * module.weight.shape[1])) ** 0.5)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, Learned):
            module.reset_parameters()


class LabModel(LabPreTrainedModel):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LabBlock(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch position"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "_ position"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch position width"] | None = None,
        use_cache: bool | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """`attention_mask` is 1 for real tokens and covers cached ones too; `document_ids` numbers packed documents.

        Raises `InputError` for a mask of another form and where both or neither of ids and embeddings are given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give exactly one of input_ids and inputs_embeds")
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        visibility = self._visibility(hidden_states, attention_mask, past_key_values, document_ids)
        if position_ids is None:
            position_ids = visibility.query.order.clamp(min=0)
        rotation = self.rotary(position_ids, hidden_states.dtype)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                visibility=visibility,
                rotation=rotation,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values if use_cache else None
        )

    def _visibility(
        self, hidden_states: Tensor, attention_mask: Tensor | None, cache: Cache | None, documents: Tensor | None
    ) -> Visibility:
        queries = hidden_states.shape[1]
        keys = queries + (int(cache.get_seq_length()) if cache is not None else 0)
        if attention_mask is not None:
            if attention_mask.ndim != 2 or attention_mask.shape[1] < keys:
                raise InputError(
                    f"attention_mask {tuple(attention_mask.shape)}: expected (batch, {keys}), one entry for each token "
                    "so far; windows, prefixes and documents belong to the attention operation's mask"
                )
            attention_mask = attention_mask[:, :keys]
            if not torch.compiler.is_compiling() and bool(attention_mask.all()):
                attention_mask = None  # no padding: the causal triangle needs no written mask
        return Visibility.of(
            self.config.spec.mask,
            queries,
            keys,
            attention_mask=attention_mask,
            documents=documents,
            device=hidden_states.device,
        )


class LabForCausalLM(LabPreTrainedModel, GenerationMixin):
    """The lab model with its language-modelling head (untied unless `tie_word_embeddings`)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.model = LabModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch position"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "_ position"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch position width"] | None = None,
        labels: Int[Tensor, "batch position"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        document_ids: Int[Tensor, "batch keys"] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, position, vocabulary); with `labels` also the mean next-token cross-entropy in nats."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            document_ids=document_ids,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        """Hand `generate`'s two-dimensional mask on as it is: the model binds its own mask from it, with any cache."""
        return attention_mask

    def to_llama(self) -> LlamaForCausalLM:
        """The same model as a `LlamaForCausalLM`, with equal logits (up to rounding); weights are copied.

        Raises `InputError` where the attention operation is not plain causal softmax.
        """
        config = self.config
        if config.spec != CATALOG["softmax"]:
            raise InputError(f"only a softmax model is a Llama; this one's attention is '{config.attention_name}'")
        names = [
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
            *("intermediate_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        ]
        llama = LlamaForCausalLM(
            LlamaConfig(
                **{name: getattr(config, name) for name in names},
                head_dim=config.head_dim,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            )
        )
        llama.load_state_dict(self.state_dict())
        return llama.to(device=self.device, dtype=self.dtype).train(self.training)
