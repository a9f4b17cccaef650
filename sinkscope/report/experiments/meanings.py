"""What it means that the primary claim of an experiment holds, or that it is refuted, in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, tuple[str, str]] = {
    "inputs": (
        "So the sink belongs to the position, or to the BOS that stands there, and not to what the text says.",
        "So the sink here needs text of the kind that the model learned from.",
    ),
    "emergence": (
        "So the sink is learned: it is not there at the start, and comes as the model learns.",
        "So what a model of this size has at the end it has early on, or does not have at all.",
    ),
    "learning-rate": (
        "So at equal steps a slow model has less of a sink; whether that is more than slowness is asked at equal loss.",
        "So the learning rate does not set how strong the sink becomes in these models.",
    ),
    "learning-rates": (
        "So the order of the paper's Table 9 is found again at a hundredth of the size.",
        "So the order of the paper's Table 9 does not carry over to these models.",
    ),
    "equal-product": (
        "So the rate matters beyond how far it moves the weights in all.",
        "So how far the weights are moved in all may be what counts.",
    ),
    "batch-size": (
        "So the batch size may be chosen for other reasons.",
        "So in models of this size the batch size matters, where the paper found little.",
    ),
    "fixed-token": (
        "So a token that always stands at one place is what these models make their sink of, wherever that is.",
        "So the place of the fixed token alone does not tell where the sink stands.",
    ),
    "data-amount": (
        "So with little text, read many times, much less of a sink forms.",
        "So these models form a sink on little text too.",
    ),
    "domains": (
        "So it does not matter much on which texts a model is measured.",
        "So sink rates of two models should be taken on the same kind of text.",
    ),
    "packing": (
        "So the fixed BOS carries the sink: a model that learned with it has nowhere to put attention without it.",
        "So these models do without their BOS better than the larger ones on the slides.",
    ),
    "context": (
        "So longer contexts ask for more of a sink, as the view from over-mixing predicts.",
        "So at these lengths the context does not make the sink.",
    ),
    "weight-decay": (
        "So decay helps a sink to form up to a point, and beyond it shrinks what the sink is made of.",
        "So the peak at a decay of 0.5 that the paper found is not there in models of this size.",
    ),
    "window": (
        "So the fewer queries see the first token, the weaker a sink it becomes; whether it is gone is another claim.",
        "So a short window does not keep these models from making a sink.",
    ),
    "positions": (
        "So no single way to tell positions makes the sink.",
        "So the way in which positions are told matters in models of this size.",
    ),
    "post-norm": (
        "So where the norm stands does not decide whether there is a sink.",
        "So in these models the sink needs norms before the blocks.",
    ),
    "feed-forward": (
        "So the activation of the feed-forward does not decide whether there is a sink.",
        "So some activations keep the sink away in models of this size.",
    ),
    "heads": (
        "So the number of heads does not decide whether there is a sink.",
        "So the number of heads matters in models of this size.",
    ),
    "normalisation": (
        "So there is less of a sink where rows need not sum to one; at equal loss it is asked once more.",
        "So in these models the normalization of rows is not what makes the sink.",
    ),
    "sigmoid-at-equal-loss": (
        "So sigmoid attention lacks the sink because of what it is, and not because it has learned less.",
        "So where sigmoid attention has learned as much it has a sink too, be it a weaker one.",
    ),
    "normalised-kernel": (
        "So linear attention has a sink too, once its rows sum to one.",
        "So a sum of one is not enough for a sink in linear attention.",
    ),
    "sink-token": (
        "So a learned token in front of the text does what a BOS does.",
        "So these models do not use a token that they are given for the purpose.",
    ),
    "biases": (
        "So the sink is the place for attention that nothing else asks for: a key without a value can hold it.",
        "So beside a fixed BOS these models do not use the key that they are given.",
    ),
    "biases-without-bos": (
        "So the sink acts as a key bias: where nothing else is constant, a learned key without a value holds it.",
        "So a learned key is not enough to hold the sink in these models.",
    ),
    "fixed-values": (
        "So a sink must write little: the longer the value behind the key, the less it is used.",
        "So these models use a key whatever value stands behind it.",
    ),
    "scaled": (
        "So the less weight a row has to give away, the less of it goes to the sink.",
        "So the sum of a row's weights does not set how strong the sink is in these models.",
    ),
    "off-by-one": (
        "So a one in the denominator takes what else would go to the first token.",
        "So a one in the denominator does not take the sink from a fixed BOS in these models.",
    ),
    "softpick": (
        "So a softmax that can give exactly nothing needs less of a sink.",
        "So a softmax that can give exactly nothing keeps its sink in these models.",
    ),
    "no-op": (
        "So attending to the sink is how a head does nothing.",
        "So a head writes much even while it attends to the sink.",
    ),
    "sink-head": (
        "So a model of a million parameters is large enough for a sink.",
        "So models of this size are too small for a sink of their own.",
    ),
    "over-mixing": (
        "So the sink keeps what happens at one token from spreading to all others.",
        "So in these models the sink does not keep tokens from mixing.",
    ),
    "collapse": (
        "So without a sink the tokens of a model become more alike.",
        "So in models of this depth the lack of a sink makes tokens more alike by less than that, if at all.",
    ),
}
