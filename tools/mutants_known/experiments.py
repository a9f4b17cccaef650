"""Mutants of experiments: what decides, what counts, what is run next, and what must not be lost."""

from tools.mutants_known.mutant import Mutant, of

TESTS = "tests/experiments"
contrasts = of("experiments/contrasts.py", f"{TESTS}/test_contrasts.py")
effects = of("experiments/effects.py", f"{TESTS}/test_effects.py")
equal_loss = of("experiments/equal_loss.py", f"{TESTS}/test_effects.py")
findings = of("experiments/findings.py", f"{TESTS}/test_contrasts.py", f"{TESTS}/test_findings.py")
statements = of("experiments/statements.py", f"{TESTS}/test_statements.py")
pooled = of("experiments/pooled.py", f"{TESTS}/test_pooled.py")
aside = of("experiments/aside.py", f"{TESTS}/test_aside.py")
observed = of("experiments/observed.py", f"{TESTS}/test_pooled.py", f"{TESTS}/test_aside.py")
plan = of("experiments/queue/plan.py", f"{TESTS}/queue/test_plan.py")
running = of("experiments/running.py", f"{TESTS}/test_running.py")
working = of("experiments/queue/working.py", f"{TESTS}/queue/test_working.py")
data = of("experiments/questions/data.py", f"{TESTS}/questions/test_premises.py")
blocks = of("experiments/questions/blocks.py", f"{TESTS}/questions/test_premises.py")
keys = of("experiments/observing/keys.py", f"{TESTS}/observing/test_keys.py")
no_op = of("experiments/observing/no_op.py", f"{TESTS}/observing/test_no_op.py")
said = of("experiments/paper/said.py", f"{TESTS}/paper/test_said.py")
mechanism = of("experiments/questions/mechanism.py", f"{TESTS}/questions/test_premises.py")
pilots = of("experiments/questions/pilots.py", f"{TESTS}/questions/test_premises.py")
geometry = of("metrics/geometry.py", f"{TESTS}/observing/test_keys.py")

MUTANTS: tuple[Mutant, ...] = (
    observed(
        "other heads are no change", "and all(_same_rows(rows, other.heads[name])", "and all(True or (rows, name)"
    ),
    observed("other costs are no change", "others.items() <= vars(other).items()", "True"),
    aside("what has not changed is written again", "if before is not None and before.same(findings):", "if False:"),
    findings(
        "another provenance is no change",
        "and (self.failed, self.provenance) == (other.failed, other.provenance)",
        "and self.failed == other.failed",
        f"{TESTS}/test_aside.py",
    ),
    running("all runs are compiled", "recipes[cell].compiled() if compiled", "recipes[cell].compiled() if True"),
    working("a full disk is met by one run after another", "if not path.exists():  #", "if False:  #"),
    working("what is finished waits for room", "if not path.exists():  #", "if True:  #"),
    pooled("the wrong record is said to count", "if key not in first and runs[key] is not known:", "if False:"),
    working("a compiled queue does not compile", "job.compiled() if self.compiled else job", "job"),
    contrasts("a series of two rises by half", "scale = last / math.fsum(", "scale = 1 / math.fsum("),
    contrasts("a constant is forgotten", "Estimate(found.mean + self.constant,", "Estimate(found.mean,"),
    equal_loss("a control without its sink decides", "FORMED = 0.5", "FORMED = -1.0"),
    equal_loss(
        "another's sink that comes later is none", "or not (is_control or final >= FINAL[sink])", "or not is_control"
    ),
    equal_loss("what has no sink is refused", "or not (is_control or final >= FINAL[sink])", "or False"),
    effects("what has not learned has no sink", "return math.nan if untrained else value", "return value"),
    contrasts("a difference adds", "weight=-term.weight", "weight=term.weight", f"{TESTS}/test_effects.py"),
    contrasts(
        "a difference keeps one constant", "self.constant - other.constant", "self.constant", f"{TESTS}/test_effects.py"
    ),
    findings(
        "seeds that were seen count",
        "for seed, run in known if seed >= first}",
        "for seed, run in known if seed >= 0}",
    ),
    findings(
        "a run that diverged is left out",
        "if math.isnan(value) and not run.diverged]:",
        "if math.isnan(value)]:",
    ),
    findings("a seed that was seen counts within a seed", "range(first, findings.seeds)", "range(0, findings.seeds)"),
    statements("a claim of the runs' own day is older", "elif date == first and by_record:", "elif False:"),
    statements("a claim's number is not its own", '{asked:g}{premise}".encode()', '{premise}".encode()'),
    statements("a premise that is added leaves a claim what it was", 'premise = f" unless {refusal}"', 'premise = ""'),
    statements("seeds that do not count date a claim", "if seed >= first", "if seed >= 0"),
    statements("a claim of the runs' own day is a later one", "if date > first:", "if date >= first:"),
    pooled("a clock that was wrong comes first", "bool(run.started and not run.began), run.began", "False, run.began"),
    pooled("the run that was made last counts", "_when(other) < _when(run)", "_when(other) > _when(run)"),
    pooled("a question keeps its own numbers", "or not run.same_training(pooled) else run", "else run"),
    pooled("another layout's numbers are mixed", "if not one.reads(run.layout):", "if False:"),
    pooled("other numbers are not told of", "elif not before.same_training(run) or (", "elif False and ("),
    aside("the record is written before what it loses", "if before is not None and any(gone.values()):", "if False:"),
    aside(
        "what was set aside is overwritten",
        "if all(runs[label].get(seed, run).agrees(run) for",
        "if True or all(runs[label].get(seed, run).agrees(run) for",
    ),
    aside("what was read with other numbers is lost", "known.layout > run.layout or ", "True or "),
    aside("what was read with more numbers is lost", "(known.layout == run.layout and ", "(True and "),
    observed("a clock that jumped is believed", "return self.started if EARLIEST", "return self.started if '' "),
    observed(
        "a repetition is the same training",
        "return all(_same(self.curves[name]",
        "return all(True or _same(self.curves[name]",
    ),
    plan("the run that the fewest claims lack comes first", "(-claims, key[1],", "(claims, key[1],"),
    plan(
        "a run is planned twice", "if (key := (one.key, seed)) in made:", "if (key := (one.key, seed)) in known.runs:"
    ),
    plan("seeds that do not count are asked for", "start = max(one.first_seed", "start = min(one.first_seed"),
    plan(
        "decided claims ask for more",
        "            if verdict.outcome not in UNDECIDED:",
        "            if verdict.outcome == '':",
    ),
    working("the time is never up", "        if now >= end:", "        if now >= end + SECONDS:"),
    working(
        "a failure takes the place of a run",
        "        if planned.seed in before.runs.get(planned.label, {}):\n            return\n",
        "",
    ),
    working(
        "a run that another process holds is tried at once",
        "self.again[planned.key] = time.monotonic() + AGAIN",
        "self.again[planned.key] = 0.0",
    ),
    working("another version is told of at every run", "        self.compared.add(identity)\n", ""),
    working(
        "the failure of another run is forgotten",
        "if (label, seed) != (planned.label, planned.seed)",
        "if label != planned.label",
    ),
    running(
        "two write one record at a time",
        "    with aside.held(results, question.name, scale):  # read again",
        "    if True:  # read again",
    ),
    keys("the head with the weakest sink", "np.nanargmax(strength)", "np.nanargmin(strength)"),
    geometry(
        "a key is compared with its own position too",
        "_measured(np.delete(keys, position, axis=1).reshape(-1, keys.shape[-1]))",
        "_measured(keys.reshape(-1, keys.shape[-1]))",
    ),
    effects(
        "what is not there is asked whether it moves", "value if runs[label][metric] >= least else math.nan", "value"
    ),
    no_op("heads without the sink are read", "np.argwhere(received > SINK)", "np.argwhere(received > -1.0)"),
    no_op("heads with the sink are controls", "received[layer] <= SINK)", "received[layer] <= 0.45)"),
    no_op("queries right behind the sink count", "int(position) + BEHIND, None", "int(position) + 1, None"),
    said("exploratory claims fade", "fades = by.primary and", "fades ="),
    said(
        "claims of after their first run are as good",
        "by.verdict.claim.name) in late)",
        "by.verdict.claim.name) in ())",
    ),
    effects(
        "a run that diverged is unknown",
        "return UNTRAINED if runs[label].diverged",
        "return value if runs[label].diverged",
    ),
    findings(
        "what others lack is named", 'claim.not_run("; ".join(notes) if known else', 'claim.not_run("; ".join(notes) or'
    ),
    findings("a run may stand for another seed", "if run.seed != seed:", "if False:"),
    mechanism("one embedding that takes the sink is enough", "least(one(runs) for one in kept)", "kept[0](runs)"),
    pilots("a prefix moves what is not there", "FAINT, rate_at, moved)", "0.0, rate_at, moved)"),
    findings("seeds of one model are a sample of models", "if name not in left_out", "if True"),
    data("a sink may stand at the first position alone", "for position in READ)", "for position in READ[:1])"),
    blocks(
        "what is there before training comes in training",
        'math.nan if runs["relative_paper"][start] >= least else value',
        "value",
    ),
)
