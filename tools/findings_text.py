"""What the page of findings says besides its numbers."""

BEFORE = """# What the experiments found

Each question of the field that a training run can answer is an experiment here: variations of one recipe, and claims
that were stated beforehand, each with the number that decides it. If a claim was added after a first look, its section
says so. This page gives all results, in the order of the questions. A refuted claim stands where it would stand if it
had been supported.
{tally}. All runs together are {runs} and {hours} of training.

The page is written by `python -m tools.findings_page` from the records in
`sinkscope/experiments/records`, and nothing in it was typed by hand but this introduction. A claim is judged on every
run that it reads, whatever question that run was made for. `sinkscope experiment verdict --all` judges the same records
on the terminal; `sinkscope report sinkscope/experiments/records` turns them into a page with the curves of every run.

## What models of this size can show

At scale `nano` a model has 1.3 million parameters, in four layers of width 128, and reads 1,500 batches of 32 windows
with 128 tokens of Python code: 6.1 million tokens, minutes on a processor. The 60M model of Gu et al. 2025, whose
training the recipe `60m` repeats, has 136 million parameters with its embeddings: about a hundred times as many. It
reads 20,000 batches of 512 windows with 2,048 tokens, 21 billion tokens: some 3,400 times as many. Other sources
cited here measure models of up to 405 billion parameters. So:

- **Directions can be decided, digits cannot.** "The sink rate is higher with A than with B by more than 3 points"
  is a claim that these runs can refute. They cannot say how high it is in a model a hundred times larger.
  So published values stand beside ours in columns and axes of their own.
- **The sink is there because a BOS is fixed at position 0.** Without a token that always comes first these models
  form no sink in 1,500 steps, while larger ones do in 20,000. What the literature varies *without* a fixed BOS
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
  where the control's sink there is less than half of its final one, since there is little to be missing.
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

| experiment | question | source | why |
|---|---|---|---|
{rows}
"""
