"""What it means that the primary claim of an experiment holds, or that it is refuted, in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, tuple[str, str]] = {
    "metric": (
        "So on each of these lengths of text the sink mass is larger with the higher learning rate.",
        "So on some length of text the sink mass hardly rises with the learning rate, or falls.",
    ),
    "inputs": (
        "So the sink belongs to the position, or to the BOS that stands there, and not to what the text says.",
        "So the sink here needs text of the kind that the model learned from.",
    ),
    "emergence": (
        "So the sink grows as the model learns: there is more of it at the end than after a quarter of the steps.",
        "So after a quarter of the steps there is as much of a sink as at the end, or there is none at all.",
    ),
    "learning-rate": (
        "So at equal steps a slow model has less of a sink; whether that is more than slowness is asked at equal loss.",
        "So the learning rate does not set how strong the sink becomes in these models.",
    ),
    "learning-rates": (
        "So the sink rises with the learning rate here as in the paper's Table 9, at a hundredth of the size.",
        "So the sink does not rise with the learning rate in these models as in the paper's Table 9.",
    ),
    "equal-product": (
        "So the rate matters beyond how far it moves the weights in all.",
        "So how far the weights are moved in all may be what counts.",
    ),
    "batch-size": (
        "So the batch size may be chosen for other reasons.",
        "So in models of this size the batch size matters, where the paper found little.",
    ),
    "optimisers": (
        "So the optimizer has its part in massive activations: AdamW makes more of them than OrthoAdam.",
        "So another basis for Adam's steps does not take massive activations away in models of this size.",
    ),
    "entropy-collapse": (
        "So a rate that is too high for training shows in models of this size too.",
        "So models of this size bear eight times the rate.",
    ),
    "sigma-reparam": (
        "So with the reparametrization the sharpest head has more entropy.",
        "So the reparametrization does not keep the sharpest head's entropy up in models of this size.",
    ),
    "logit-growth": (
        "So attention logits grow with the rate in small models too.",
        "So a higher rate does not make the largest logit grow in models of this size.",
    ),
    "fixed-token": (
        "So a token that always stands at one place takes the sink there, away from the first position.",
        "So the place of the fixed token alone does not tell where the sink stands.",
    ),
    "fixed-positions": (
        "So the sink stands where the fixed token stands, and not at the first position as such.",
        "So the sink does not go with the fixed token to each of these positions.",
    ),
    "data-amount": (
        "So with little text, read many times, less of a sink forms.",
        "So these models form a sink on little text too.",
    ),
    "random-tokens": (
        "So a first token that says nothing makes the stronger sink.",
        "So a first token that says nothing does not make the sink stronger in these models.",
    ),
    "domains": (
        "So it does not matter much on which texts a model is measured.",
        "So sink rates of two models should be taken on the same kind of text.",
    ),
    "mixture": (
        "So the sink forms on every one of these kinds of text.",
        "So some kinds of text keep the sink away in models of this size.",
    ),
    "packing": (
        "So the sink of a model that learned with a fixed BOS goes with that BOS.",
        "So the sink of these models does not go with their BOS.",
    ),
    "packing-without-bos": (
        "So a sink that no fixed BOS holds is weaker where documents do not see each other.",
        "So masks between documents do not weaken the sink in these models.",
    ),
    "document-bos": (
        "So a BOS that begins every document takes the sink where it begins a text.",
        "So a BOS that begins every document is not enough for a sink in these models.",
    ),
    "context": (
        "So longer contexts ask for more of a sink, as the view from over-mixing predicts.",
        "So at these lengths the context does not make the sink.",
    ),
    "weight-decay": (
        "So a moderate decay makes a stronger sink than none.",
        "So a moderate decay makes no stronger sink than none in models of this size.",
    ),
    "weight-decays": (
        "So small decays leave the sink as it is.",
        "So small decays change the sink in models of this size.",
    ),
    "prefix": (
        "So a model that reads a prefix both ways has a sink within the prefix.",
        "So a model of this size that reads a prefix both ways has no sink within it.",
    ),
    "window": (
        "So a model that learned with a short window has less of a sink.",
        "So a short window does not keep these models from making a sink.",
    ),
    "windows": (
        "So the further back a query may look, the stronger the sink.",
        "So at these lengths the window does not set how strong the sink is.",
    ),
    "positions": (
        "So behind a fixed BOS no single way to tell positions makes the sink.",
        "So the way in which positions are told matters in models of this size.",
    ),
    "post-norm": (
        "So where the norm stands does not decide whether there is a sink.",
        "So in these models the sink needs norms before the blocks.",
    ),
    "feed-forward": (
        "So behind a fixed BOS the activation of the feed-forward does not decide whether there is a sink.",
        "So some activations keep the sink away in models of this size.",
    ),
    "heads": (
        "So behind a fixed BOS the number of heads does not decide whether there is a sink.",
        "So the number of heads matters in models of this size.",
    ),
    "outlier-protected": (
        "So this block has fewer outliers, as it was made to.",
        "So this block has no fewer outliers in models of this size.",
    ),
    "normalisation": (
        "So where sigmoid attention has learned as much as softmax it has less of a sink.",
        "So where sigmoid attention has learned as much as softmax it has about as much of a sink.",
    ),
    "sigmoid-at-equal-loss": (
        "So sigmoid attention that has learned as much as softmax puts hardly any weight on the first token.",
        "So sigmoid attention that has learned as much leaves more on the first token than this limit "
        "allows; whether that is less than softmax has is another claim.",
    ),
    "unnormalised": (
        "So at equal steps a similarity other than sigmoid has less of a sink too, where rows need not sum "
        "to one; whether any is left is another claim.",
        "So rows that need not sum to one are not enough to weaken the sink.",
    ),
    "normalised-kernel": (
        "So linear attention has a sink too, once its rows sum to one.",
        "So a sum of one is not enough for a sink in linear attention.",
    ),
    "failing": (
        "So this combination does not train at this size either.",
        "So this combination, which did not train in the paper, trains at this size.",
    ),
    "sigmoid-settings": (
        "So sigmoid attention has no sink under any of these rates and decays.",
        "So there are rates or decays under which sigmoid attention has a sink.",
    ),
    "sink-token": (
        "So a learned token in front of the text does what a BOS does.",
        "So these models do not use a token that they are given for the purpose.",
    ),
    "biases": (
        "So beside a learned key without a value the first token has less of a sink.",
        "So a learned key without a value does not weaken the sink of a fixed BOS in these models.",
    ),
    "biases-without-bos": (
        "So the sink acts as a key bias: where nothing else is constant, a learned key without a value holds it.",
        "So a learned key is not enough to hold the sink in these models.",
    ),
    "key-value-biases": (
        "So one learned key for all heads is enough to hold the sink.",
        "So one learned key for all heads does not hold the sink in these models.",
    ),
    "fixed-values": (
        "So the longer the value behind the key, the less the key is used.",
        "So how long the value behind the key is does not set how much the key is used, in these models.",
    ),
    "low-rank-key": (
        "So one learned channel makes a key of zeros hold more.",
        "So one learned channel adds little to a key of zeros, which holds a sink already.",
    ),
    "scaled": (
        "So the less weight a row has to give away, the less of it goes to the sink.",
        "So the sum of a row's weights does not set how strong the sink is in these models.",
    ),
    "powers": (
        "So rows whose squares sum to one do not train here, as in the paper.",
        "So rows whose squares sum to one train well enough in models of this size.",
    ),
    "off-by-one": (
        "So a one in the denominator takes some of what else would go to the first token.",
        "So a one in the denominator does not take the sink from a fixed BOS in these models.",
    ),
    "off-by-one-and-orthoadam": (
        "So the two together leave less of a sink; what they leave of the outliers is another claim.",
        "So the two together do not take the sink from a fixed BOS in these models.",
    ),
    "softpick": (
        "So a softmax that can give exactly nothing has less of a sink, at equal steps.",
        "So a softmax that can give exactly nothing keeps its sink in these models.",
    ),
    "clipped": (
        "So a softmax that is stretched and clipped, which can give exactly nothing, has less of a sink, at "
        "equal steps.",
        "So a softmax that is stretched and clipped keeps its sink in these models.",
    ),
    "stable-mask": (
        "So weight that goes to the future takes the place of some of the sink.",
        "So weight that goes to the future does not take the place of the sink in these models.",
    ),
    "gated": (
        "So a head that can close a gate has less of a sink, at equal steps.",
        "So a head that can close a gate keeps its sink in these models.",
    ),
    "gated-by-channel": (
        "So a head that can close its channels one by one has less of a sink, at equal steps.",
        "So a head that can close its channels one by one keeps its sink in these models.",
    ),
    "gated-truncated": (
        "So a gate that reads twelve channels leaves less of a sink than softmax has; how much of that "
        "comes of its half-open start is another claim.",
        "So a gate that reads twelve channels does not weaken the sink in these models.",
    ),
    "exclusive": (
        "So a head whose output keeps nothing of its token's own value has less of a sink; where its weight "
        "goes instead is another claim.",
        "So a head whose output keeps nothing of its token's own value keeps its sink in these models.",
    ),
    "off-by-one-without-bos": (
        "So where nothing else is constant, the one in the denominator is used as a sink.",
        "So the one in the denominator is not used as a sink in these models.",
    ),
    "no-op": (
        "So a head with the sink writes somewhat less while it attends to it.",
        "So a head with the sink writes hardly less while it attends to it.",
    ),
    "sink-head": (
        "So a model of a million parameters, with a fixed BOS, is large enough for a sink.",
        "So models of this size are too small for a sink of their own.",
    ),
    "moved-positions": (
        "So learned positions can make a sink where no token is fixed.",
        "So learned positions alone make no sink in models of this size.",
    ),
    "over-mixing": (
        "So the sink dampens what a change of one token does to the later ones.",
        "So in these models the sink does not dampen what a change of one token does to the later ones.",
    ),
    "collapse": (
        "So without a sink the tokens of a model become more alike.",
        "So in models of this depth tokens become more alike by less than that for the lack of a sink, or not at all.",
    ),
    "streaming": (
        "So the stronger its sink, the more a stream loses with its first tokens.",
        "So what a stream loses with its first tokens does not follow how strong the sink is, in these models.",
    ),
    "backcopy": (
        "So a head that has nothing to copy attends to the BOS.",
        "So a head that has nothing to copy does not attend to the BOS above all.",
    ),
    "backcopy-dynamics": (
        "So attention on the BOS and the drain of its value come together.",
        "So attention on the BOS and the drain of its value do not come together in this task.",
    ),
    "backcopy-depth": (
        "So a single layer makes no peak in the residual stream.",
        "So a single layer is enough for a peak in the residual stream.",
    ),
    "backcopy-norms": (
        "So the sink of this task does not need LayerNorm; RMSNorm will do.",
        "So with RMSNorm the BOS is not the sink in this task.",
    ),
    "backcopy-feed-forward": (
        "So the sink of this task does not need a feed-forward with an activation.",
        "So the sink of this task needs a feed-forward with an activation.",
    ),
    "backcopy-optimiser": (
        "So the peak in the residual stream does not come with SGD.",
        "So the peak in the residual stream is there under SGD too.",
    ),
    "backcopy-relu": (
        "So attention whose rows need not sum to one does this task with less of a sink.",
        "So ReLU attention makes a sink of the BOS in this task too.",
    ),
    "backcopy-minimal": (
        "So the value at the BOS drains because attention falls on it.",
        "So the value at the BOS drains also where little attention falls on it.",
    ),
    "trigger-conditional": (
        "So a row that must sum to one gives its weight to the first token where nothing is asked for.",
        "So these models give nothing, where nothing is asked for, in another way.",
    ),
    "tuning": (
        "So instruction tuning leaves the sink on plain text as it was.",
        "So instruction tuning changes the sink, on plain text too.",
    ),
    "rotary-without-bos": (
        "So a trace of a sink forms without a fixed BOS too, given the time; whether any head has a sink is "
        "another claim.",
        "So no sink forms here without a fixed BOS, in four times the steps either.",
    ),
    "prefix-longer": (
        "So a model that reads a prefix both ways moves its sink behind the first token, within the prefix.",
        "So a model of this size that reads a prefix both ways has no sink behind the first token of it.",
    ),
    "random-tokens-longer": (
        "So a first token that says nothing makes the stronger sink.",
        "So a first token that says nothing makes the sink of these models hardly stronger, if at all.",
    ),
    "micro-pilot": (
        "So a model of more heads has its sink too; whether it is worth its hours stands in the note.",
        "So this model of more heads shows no sink.",
    ),
}
