"""The lab language model: a transformers model whose attention operation is a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from transformers import Cache, DynamicCache, GenerationMixin, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.output_capturing import capture_outputs

from sinkscope.attention import CATALOG, Learned, Visibility
from sinkscope.errors import InputError
from sinkscope.hooks import CACHE_NAMES, given_cache
from sinkscope.model.attention import AddedHeads, LabAttention
from sinkscope.model.config import LabConfig, unlike_llama
from sinkscope.model.feedforward import FeedForward, NoFeedForward, starting_std
from sinkscope.model.mamba import JambaMambaMixer, JambaRMSNorm, LabMamba
from sinkscope.model.mamba import start as start_mamba
from sinkscope.model.norms import GatedNorm, PreAffineNorm
from sinkscope.model.positions import (
    Alibi,
    LearnedTable,
    PositionScheme,
    RelativePaper,
    RelativeT5,
    Rotary,
    Sinusoidal,
    TokenPositions,
)
from sinkscope.model.reparam import iterate, reparametrize, start_sigma
from sinkscope.model.shared_kv import run_layers
from sinkscope.model.sink_tokens import SinkTokens
from sinkscope.model.visibility import bind

NORMS: dict[str, type[nn.RMSNorm] | type[nn.LayerNorm]] = {"rmsnorm": nn.RMSNorm, "layernorm": nn.LayerNorm}
# The field of an output that holds the cache.
RETURNED = next(name for name in CACHE_NAMES if name in BaseModelOutputWithPast.__dataclass_fields__)


@dataclass(frozen=True)
class Placement:
    """Which of the norms N of a residual branch f there are: x ← N_sum(x + β · N_out(f(N_in(x)))).

    `enters`: N_in; `leaves`: N_out; `sums`: N_sum; an absent norm is the identity. `first`: a norm of the embeddings,
    before the first block; `last`: one after the last block, before the head.
    """

    enters: bool = False
    leaves: bool = False
    sums: bool = False
    first: bool = False
    last: bool = False

    def opens(self, layer: int) -> bool:
        """Whether a block starts with a norm of the stream.

        The N_sum after a block's feed-forward is applied at the start of the next block, and the last one in place of
        the final norm. So blocks always pass on the stream before a norm, where massive activations are visible (Gu et
        al. 2025, section 7).
        """
        return self.first if layer == 0 else self.sums

    @property
    def closes(self) -> bool:
        """Whether there is a norm of the stream after the last block."""
        return self.last or self.sums


PLACEMENTS = {
    # x + f(N(x)), as in Llama.
    "pre": Placement(enters=True, last=True),
    # N(x + f(x)) and no other (Gu et al. 2025, section 7; sail-sg/Attention-Sink, lit_gpt/model_postln.py).
    "post": Placement(sums=True),
    # x + N(f(N(x))): Ding et al. 2021 (CogView); Gemma Team 2024.
    "sandwich": Placement(enters=True, leaves=True, last=True),
    # x + β f(x) (He et al. 2024). Ours norms the embeddings, stream and all; the released code norms only what
    # enters the first attention and keeps GPT-2's last norm. The paper's block also has `attention="qk_norm"` and
    # `ffn="relu"`, which stay choices of their own here.
    "outlier_protected": Placement(first=True),
}


def norm(config: LabConfig, wanted: bool = True) -> nn.Module:
    """The model's kind of norm over the width (`config.norm`, eps `config.rms_norm_eps`); the identity for the kind
    `none` and if not `wanted`.

    RMSNorm: x / sqrt(mean(x²) + eps) · g. LayerNorm: (x − mean(x)) / sqrt(var(x) + eps) · g + b. g starts at 1, b at 0.
    The others: `model.norms`.
    """
    if not wanted or config.norm == "none":
        return nn.Identity()
    if config.norm == "gated_rmsnorm":
        return GatedNorm(config.hidden_size, config.norm_rank, config.rms_norm_eps)
    if config.norm == "preaffine_rmsnorm":
        return PreAffineNorm(config.hidden_size, config.rms_norm_eps)
    return NORMS[config.norm](config.hidden_size, eps=config.rms_norm_eps)


class LabBlock(GradientCheckpointingLayer):
    """x ← N_sum(x + β · N_out(f(N_in(x)))) for f = the mixer (attention, or Mamba in a hybrid), then the feed-forward.

    `config.norm_placement` says which of the norms there are (`norms.PLACEMENTS`); the others are identities. What a
    block returns is the residual stream before any norm: in a post-norm model, N_sum of the feed-forward is the next
    block's `entry_norm`, and the last one the model's `norm`.
    """

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.attends, self.gain = config.attends[layer_idx], config.residual_gain
        if self.attends:
            self.self_attn = LabAttention(config, layer_idx)
        else:
            self.mamba = LabMamba(config, layer_idx)
        feeds = config.ffn != "none"
        self.mlp = FeedForward(config) if feeds else NoFeedForward()
        has = PLACEMENTS[config.norm_placement]
        self.entry_norm = norm(config, has.opens(layer_idx))
        self.input_layernorm = norm(config, has.enters)
        self.mixer_output_norm = norm(config, has.leaves)
        self.mixer_sum_norm = norm(config, has.sums)
        self.post_attention_layernorm = norm(config, has.enters and feeds)
        self.mlp_output_norm = norm(config, has.leaves and feeds)
        if config.weight_reparam == "sigma":
            reparametrize(self, config.num_hidden_layers)

    def forward(self, hidden_states: Float[Tensor, "batch position width"], **kwargs: Any) -> Tensor:
        hidden_states = self.entry_norm(hidden_states)
        normed = self.input_layernorm(hidden_states)
        mixed = self.self_attn(normed, **kwargs)[0] if self.attends else self.mamba(normed, **kwargs)
        # `alpha` is β: multiplied within the sum, without a scaled copy of the branch.
        added = torch.add(hidden_states, self.mixer_output_norm(mixed), alpha=self.gain)
        hidden_states = self.mixer_sum_norm(added)
        transformed = self.mlp(self.post_attention_layernorm(hidden_states))
        return torch.add(hidden_states, self.mlp_output_norm(transformed), alpha=self.gain)

    def values(self, hidden_states: Float[Tensor, "batch position width"]) -> Tensor:
        """The values of this block's attention, before any gate of them."""
        return self.self_attn.values(self.input_layernorm(self.entry_norm(hidden_states)))


SCHEMES: dict[str, Callable[[LabConfig], PositionScheme]] = {
    "none": lambda config: PositionScheme(),
    "learned": lambda config: LearnedTable(config.max_position_embeddings, config.hidden_size),
    "sinusoidal": lambda config: Sinusoidal(config.hidden_size),
    "relative_t5": lambda config: RelativeT5(config.num_attention_heads, config.hidden_size, config.is_causal),
    "relative_paper": lambda config: RelativePaper(config.is_causal),
    "rotary": lambda config: Rotary(config.rope),
    "alibi": lambda config: Alibi(config.num_attention_heads),
}


def scheme_of(config: LabConfig) -> PositionScheme:
    """The module that `config.position` names; `LabConfig` has checked that it can be built."""
    return SCHEMES[config.position](config)


class LabGenerationMixin(GenerationMixin):
    """transformers' `generate`, corrected: it counts tokens by the cache's length, and sink tokens are in there too."""

    config: LabConfig

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `generate`. Raises `InputError` for a bidirectional model, which predicts no next token."""
        if not self.config.is_causal:
            raise InputError("a bidirectional model (is_causal=False) does not generate: it predicts no next token")
        return super().generate(*args, **kwargs)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        """Pass `generate`'s two-dimensional mask on unchanged: the model binds its own mask from it, with any cache."""
        return attention_mask

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The tokens that the caller's cache lacks: all but the real tokens in it."""
        # `generate` reads the last (given − cached) tokens. The cache counts the sink tokens, which the caller's ids do
        # not contain: as many unread tokens would be skipped.
        cache = given_cache(kwargs)
        seen = 0 if cache is None else int(cache.get_seq_length())
        if is_first_iteration and next_sequence_length is not None and seen:
            next_sequence_length += self.config.sink_tokens
        return super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: Any, generation_mode: Any, batch_size: int, max_cache_length: int
    ) -> Any:
        """A cache of fixed length holds the sink tokens as well."""
        longer = max_cache_length + self.config.sink_tokens
        return super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, longer
        )


class LabPreTrainedModel(PreTrainedModel):
    """What the lab models share: configuration class, capabilities, initialization."""

    config_class = LabConfig
    config: LabConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LabBlock"]  # noqa: RUF012  (the base class declares it so)
    _skip_keys_device_placement = [*CACHE_NAMES]  # noqa: RUF012
    _supports_sdpa = False  # any other implementation would run softmax, whatever the operation is
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = {"hidden_states": LabBlock, "attentions": LabAttention}  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Matrices N(0, std²) with `initial.starting_std`, norms 1, biases 0; what has a rule of its own follows it."""
        if isinstance(module, Learned):
            module.reset_parameters()
        elif isinstance(module, ParametrizationList):
            start_sigma(module)
        elif isinstance(module, JambaMambaMixer):
            start_mamba(module)
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm | JambaRMSNorm):
            init.ones_(module.weight)
            _zero_bias(module)
        elif isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | AddedHeads):
            if not is_parametrized(module):
                init.normal_(module.weight, mean=0.0, std=starting_std(module, self.config.num_hidden_layers))
            _zero_bias(module)


def tokens_seen(cache: Cache | None, config: LabConfig) -> int:
    """How many tokens a cache has seen. Raises `InputError` if it counts them in a layer that stores none."""
    if cache is None:
        return 0
    # transformers asks layer 0 for the length, but under `kv_layers` layer 0 may store nothing and answer 0 for ever.
    seen, keeps = int(cache.get_seq_length()), config.supplies.index(True)
    if config.shares_kv and len(cache.layers) > keeps and int(cache.layers[keeps].get_seq_length()) != seen:
        raise InputError(
            f"the cache counts its tokens by layer 0, which keeps none where kv_layers = {config.kv_layers}: pass "
            "DynamicCache(config=model.config)"
        )
    return seen


class LabModel(LabPreTrainedModel):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.masks = [spec.mask for spec in config.specs]  # once, since that parses the configuration anew
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LabBlock(config, index) for index in range(config.num_hidden_layers))
        self.norm = norm(config, PLACEMENTS[config.norm_placement].closes)
        self.position = scheme_of(config)
        self.sinks = SinkTokens(config.sink_tokens, config.hidden_size) if config.sink_tokens else None
        self.gradient_checkpointing = False
        self.iterates = config.weight_reparam == "sigma"
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch position"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch position width"] | None = None,
        use_cache: bool | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states after the last layer. Hidden states and attention maps on request include the sink tokens, in
        front.

        Args:
            input_ids, inputs_embeds: Exactly one of them.
            attention_mask: 1 for real tokens, 0 for padding; covers cached ones too. None: no padding.
            position_ids: Replace the positions among real tokens.
            past_key_values: A cache; None: a new one if `use_cache`.
            use_cache: None: as the configuration says. A bidirectional model has no cache.
            document_ids: Number packed documents, cached tokens included.
            cache: `past_key_values`, by transformers' name for it from 5.24 on.

        Raises `InputError` for a mask of another form, if both or neither of ids and embeddings are given, and for a
        cache in a bidirectional model.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give exactly one of input_ids and inputs_embeds")
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        past_key_values = past_key_values if cache is None else cache
        if past_key_values is not None and not self.config.is_causal:
            raise InputError("a bidirectional model cannot use a cache: each new token would change all others")
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and self.config.is_causal
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        seen = tokens_seen(past_key_values, self.config)
        # Sink tokens enter with the first pass; afterwards their keys and values are in the cache.
        new = self.config.sink_tokens if seen == 0 else 0
        visible = self._visible(hidden_states, seen, attention_mask, document_ids)
        # Here rather than in the layers, which gradient checkpointing runs twice.
        if self.training and self.iterates:
            iterate(self)
        positions = TokenPositions.of(
            visible[0], position_ids, sinks=self.config.sink_tokens, restart=self.config.restart_positions
        )
        # Positions are added before the sink tokens join the text: theirs, −n … −1, have no row in any table. Rotation
        # and bias below do cover them.
        hidden_states = self.position.embed(hidden_states, positions.query[:, new:])
        if self.sinks is not None and new:
            hidden_states = self.sinks(hidden_states)
        rotation, bias = self.position.rotation(positions), self.position.bias(positions)
        layer_inputs = {"rotation": rotation, "bias": bias, **kwargs}
        # A block returns the stream alone, so v₀ is computed a second time here. It is that of the same token, and
        # cached values are mixed already, so a pass needs no v₀ of earlier tokens.
        if self.config.value_residual:
            layer_inputs["first_values"] = self.layers[0].values(hidden_states)  # type: ignore[operator]
        if self.config.shares_kv:
            hidden_states = run_layers(
                self.layers, hidden_states, self.config, past_key_values, visible, **layer_inputs
            )
        else:
            for layer, visibility in zip(self.layers, visible, strict=True):
                hidden_states = layer(
                    hidden_states, visibility=visibility, past_key_values=past_key_values, **layer_inputs
                )
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(hidden_states)[:, new:],
            **{RETURNED: past_key_values if use_cache else None},
        )

    def _visible(
        self, hidden_states: Tensor, seen: int, attention_mask: Tensor | None, documents: Tensor | None
    ) -> list[Visibility]:
        """Each layer's mask over `seen` cached tokens, the sink tokens where none are cached yet, and the new ones."""
        sinks = self.config.sink_tokens
        queries = hidden_states.shape[1] + (0 if seen else sinks)
        text = seen + queries - sinks
        if attention_mask is not None:
            if attention_mask.ndim != 2 or attention_mask.shape[1] < text:
                raise InputError(
                    f"attention_mask {tuple(attention_mask.shape)}: expected (batch, {text}), one entry for each token "
                    "so far; windows, prefixes and documents belong to the attention operation's mask"
                )
            attention_mask = attention_mask[:, :text]
            # A compiled graph cannot branch on data, so there the mask stays.
            if not torch.compiler.is_compiling() and bool(attention_mask.all()):
                attention_mask = None  # no padding: the causal triangle needs no written mask
        bound = {
            mask: bind(
                mask,
                queries,
                seen + queries,
                sinks=sinks,
                attention_mask=attention_mask,
                documents=documents,
                is_causal=self.config.is_causal,
                device=hidden_states.device,
            )
            for mask in dict.fromkeys(self.masks)
        }
        return [bound[mask] for mask in self.masks]


class LabForCausalLM(LabPreTrainedModel, LabGenerationMixin):
    """The lab model with its language-modeling head (untied unless `tie_word_embeddings`)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.model = LabModel(config)
        # Chooses transformers' loss function: the first shifts labels by one position, the second does not.
        self.loss_type = "ForCausalLM" if config.is_causal else "ForMaskedLM"
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch position"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch position width"] | None = None,
        labels: Int[Tensor, "batch position"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        document_ids: Int[Tensor, "batch keys"] | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, position, vocabulary); with `labels` also the mean cross-entropy in nats.

        Other arguments as in `LabModel.forward`.

        Args:
            labels: Ids that are compared with the next token's prediction, in a bidirectional model with the prediction
                at their own position; −100 is ignored.
            logits_to_keep: Logits of the last so many positions, or of positions by index; 0: all.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            document_ids=document_ids,
            **kwargs,
        )
        # For the default 0 the slice begins at −0, that is at 0: all positions are kept.
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        if (cap := self.config.logit_softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{RETURNED: getattr(outputs, RETURNED)},
        )

    def to_llama(self) -> LlamaForCausalLM:
        """The same model as a `LlamaForCausalLM`, with equal logits (up to rounding); weights are copied.

        Raises `InputError` unless attention is plain causal softmax, positions are rotary over whole heads, and there
        are no sink tokens.
        """
        config = self.config
        if not config.is_causal:
            raise InputError("only a causal model is a Llama; this one is bidirectional")
        if any(spec != CATALOG["softmax"] for spec in config.specs):
            raise InputError(f"only a softmax model is a Llama; this one's attention is '{config.attention_name}'")
        if config.position != "rotary" or config.rope_fraction != 1:
            rotary = (
                f"rotary over {config.rope_fraction:g} of a head" if config.position == "rotary" else config.position
            )
            raise InputError(f"only a model with rotary positions over whole heads is a Llama; this one: {rotary}")
        if field := unlike_llama(config):
            raise InputError(f"this model is not a Llama: its {field} is {getattr(config, field)!r}")
        if config.sink_tokens:
            raise InputError(f"a Llama has no sink tokens; this model has {config.sink_tokens}")
        names = [
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
            *("intermediate_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        ]
        llama = LlamaForCausalLM(
            LlamaConfig(
                **{name: getattr(config, name) for name in names},
                head_dim=config.head_dim,
                rope_parameters=config.rope.parameters,
            )
        )
        # Strict: module names are Llama's, and softmax, rotary positions and absent norms store nothing.
        llama.load_state_dict(self.state_dict())
        return llama.to(device=self.device, dtype=self.dtype).train(self.training)


def _zero_bias(module: nn.Module) -> None:
    if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
        init.zeros_(bias)
