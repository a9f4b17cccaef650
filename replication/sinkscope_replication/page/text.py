"""What the page of findings says besides its numbers."""

BEFORE = """# What the experiments found

What is known here of the paper's claims (Gu et al. 2025), and of those beside it, from training runs of small models.
The page opens with the statements of the paper; below stand all experiments, with a figure and every claim.
A claim that was refuted stands where it would stand if it had been supported.

All claims together: {tally}. Those that are decided rest on {numbers} different numbers, since some read the
same of the same runs. They were judged on {runs}, {hours} of training. `sinkscope experiment verdict --all` says the
same on a terminal.
"""

PAPER = """## What the paper says, and what we found

A row is a claim of ours that bears on a statement of the paper. *Published* are the paper's numbers: sink rates in
percent, of its model with 60 million parameters unless another is named; *ours* is the effect that the claim asks for,
in the units of its measure. So the two are not to be compared digit by digit. A verdict depends on a one-sided bound:
the interval, which has two sides, may reach a little over what is asked and the claim be supported all the same.

The paper's models have no fixed BOS unless its row says so, and rates of 18.18 %; ours have one unless the experiment
says so, of which the paper's counterpart has 74.11 %.
"""

RELATED = """## Beside the paper

The primary claims of experiments on related work, and our own. A verdict is that of the claim beside it, and answers no
more of the question than this.
"""

SYNTHETIC = """## Synthetic tasks

Made-up tasks of which the exact answer is known. They show that a mechanism is possible, not that language models use
it.
"""

SIZES = """## What models of this size can show

At scale `nano` a model has 1.3 million parameters, in four layers of width 128, and reads 1,500 batches of 32 windows
with 128 tokens of Python code: 6.1 million tokens, minutes on a processor. The 60M model of Gu et al. 2025, whose
training the recipe `60m` repeats, has 136 million parameters with its embeddings: about a hundred times as many. It
reads 20,000 batches of 512 windows with 2,048 tokens, 21 billion tokens: some 3,400 times as many. Other sources
cited here measure models of up to 405 billion parameters. So:

- **Directions can be decided, digits cannot.** "The sink rate is higher with A than with B by more than 3 points"
  is a claim that these runs can refute. They cannot say how high it is in a model a hundred times larger.
  So published values stand beside ours in columns and axes of their own.
- **The sink is there because a BOS is fixed at position 0.** Without a token that always comes first these models
  form no sink in 1,500 steps, and a faint one, of less than 1 % of heads, in
  [6,000](#nano-rotary-without-bos), while larger ones do in 20,000. What the literature varies *without* a fixed BOS
  either cannot be varied here, or is varied in models that have one, and then means something slightly different.
- **The models are undertrained.** Whatever slows learning also lowers the sink rate at equal steps. So operations
  are compared once more at equal validation loss, where the curves reach a common loss.
- **Three seeds are few.** So each effect stands with its 95 % interval: Welch's for a difference of two runs, each
  with all its seeds, Student's for a number that is made within a seed. A claim is *supported* where the one-sided
  95 % bound lies beyond the margin. It is *refuted* where the whole interval lies on the wrong side: *reversed*
  (beyond zero) or *smaller than asked* (within the margin; for limits, *larger than asked* or *different*). Else it is
  *inconclusive*: undecided, or too few seeds. Equality is decided by two one-sided tests, a series by a fitted line.
  *Could show* is the smallest effect (for a limit the largest) that these seeds, differing as they do, could have
  shown to pass. This rule replaced "every seed passes" when seeds 0 to 2 of many runs were known; margins stayed, save
  those of norms and kurtoses, which are ratios now.
- **Equal loss is read around a point.** The mean of five evaluations around the one that reaches the loss; refused
  where the control's sink there is less than half of its final one, since there is little to be missing, or where that
  is so of the other, if it ends with a sink. The latter was added when most runs had been seen; it refuses.
- **What is not there cannot go, move or follow.** A claim that presupposes a sink, a massive activation or a model that
  has learned is refused in the seeds that lack it.
- **A sink rate of zero is a weak zero.** It means that no head passed the threshold of 0.3, not that attention was
  uniform.

The sink rate is the percentage of (layer, head) pairs in which a position receives more than 0.3 of the attention,
averaged over the tokens that can see it, on the first 64 tokens of validation windows. Positions count from 0.
"""

MADE_BY = """
## Where the numbers come from

{facts}

Cost is the time of training, measured while other runs used the same machine; the cost of an experiment includes runs
that it shares with others, while the sum above counts each run once.
"""

NOT_RUN = """
## Not run at this scale

What was asked and has no run that it could be judged on, each with what is lacking.

{experiments}
"""
