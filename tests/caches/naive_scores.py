"""What policies score, read off loops over keys by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.caches import reference
from tests.caches.reference import History, Score


def summed(of: History, row: int, head: int, k: int) -> float:
    return sum(sum(of.given[row, h][t].get(k, 0.0) for t in of.given[row, h]) for h in of.of_group(head)) / of.group


def newest(of: History, k: int, count: int) -> bool:
    return k >= of.total - count


def streaming(sinks: int) -> Score:
    return lambda of, row, head, k: math.inf if k - of.pads[row] < sinks else k


def key_norm(of: History, row: int, head: int, k: int) -> float:
    return -math.sqrt(sum(x**2 for x in of.key[row, head, k].tolist()))


def keydiff(of: History, row: int, head: int, k: int) -> float:
    kept = sorted(of.kept[row, head])
    unit = torch.stack([of.key[row, head, j].double() / of.key[row, head, j].double().norm() for j in kept])
    anchor = unit.mean(0)
    return -float(unit[kept.index(k)] @ anchor / anchor.norm())


def h2o(recent: int) -> Score:
    return lambda of, row, head, k: math.inf if newest(of, k, recent) else summed(of, row, head, k)


def observed(of: History, row: int, head: int, k: int) -> float:
    return summed(of, row, head, k) / (of.total - k)


def vatp(sinks: int, recent: int) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        if k - of.pads[row] < sinks or newest(of, k, recent):
            return math.inf
        return summed(of, row, head, k) * sum(abs(float(x)) for x in of.value[row, head, k])

    return score


def windowed(of: History, row: int, head: int, count: int) -> list[dict[int, float]]:
    """Weights of the last `count` queries, of every query head of a group, on what is kept now."""
    name = ("windowed", row, head, of.total, count)
    if name not in of.notes:
        queries = [t for t in range(of.total - count, of.total) if t >= of.pads[row]]
        of.notes[name] = [of.weights(row, h, t, of.kept[row, head]) for h in of.of_group(head) for t in queries]
    return of.notes[name]


def snapkv(window: int, kernel: int) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        if newest(of, k, window):
            return math.inf
        before = [j for j in sorted(of.kept[row, head]) if not newest(of, j, window)]
        rows, at = windowed(of, row, head, window), before.index(k)
        near = [before[i] for i in range(at - kernel // 2, at + kernel // 2 + 1) if 0 <= i < len(before)]
        return sum(found.get(j, 0.0) for found in rows for j in near)

    return score


def tova(of: History, row: int, head: int, k: int) -> float:
    heads = range(of.key.shape[1])
    return sum(sum(found.get(k, 0.0) for found in windowed(of, row, h, 1)) for h in heads)


def scissorhands(window: int, recent: int) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        if newest(of, k, recent):
            return math.inf
        count, heads = 0, of.of_group(head)
        for t in range(max(0, of.total - window), of.total):
            shares = [of.given[row, h].get(t, {}) for h in heads]  # as they were when t came
            count += sum(found.get(k, 0.0) for found in shares) / len(heads) * len(shares[0]) >= 1
        return count

    return score


def fastv(image: set[int], ids: Tensor) -> Score:
    return lambda of, row, head, k: tova(of, row, head, k) + (0 if int(ids[row, k]) in image else 1000)


def lagkv(sinks: int, lag: int) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        kept = sorted(of.kept[row, head])
        at, behind = kept.index(k), len(kept) - sinks
        if behind // lag < 2:
            return 1.0 if at < sinks else (at - sinks) / behind
        part = (at - sinks) // lag
        if at < sinks or part >= behind // lag - 1:
            return 1.0
        own, following = (kept[sinks + p * lag : sinks + (p + 1) * lag] for p in (part, part + 1))
        both = [0.0] * lag
        for x in (of.key[row, head].double().tolist(), of.value[row, head].double().tolist()):
            spread = []
            for j in own:
                low = [min(x[i][c] for i in following) for c in range(len(x[j]))]
                high = [max(x[i][c] for i in following) for c in range(len(x[j]))]
                share = [(x[j][c] - low[c]) / (high[c] - low[c]) for c in range(len(x[j]))]
                mean = sum(share) / len(share)
                spread.append(math.sqrt(sum((s - mean) ** 2 for s in share) / (len(share) - 1)))
            total = sum(map(math.exp, spread))
            both = [b + math.exp(s) / total for b, s in zip(both, spread, strict=True)]
        return sum(other < both[own.index(k)] for other in both) / lag

    return score


def shuffled(seed: int) -> Score:
    """The scramble of `RandomKeys` in Python's own integers."""

    def mixed(x: int) -> int:
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return (x ^ (x >> 16)) >> 1

    def score(of: History, row: int, head: int, k: int) -> float:
        layer = next(index for index, history in reference.histories.items() if history is of)
        return mixed(mixed((seed * 4099 + layer) * 4099 + head) + k - of.pads[row])

    return score


def look_m(image: set[int], sinks: int, recent: int, ids: Tensor) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        if k - of.pads[row] < sinks or newest(of, k, recent):
            return math.inf
        return summed(of, row, head, k) - (1e6 if int(ids[row, k]) in image else 0)

    return score


def image_edges(begin: int, end: int, sinks: int, recent: int, ids: Tensor) -> Score:
    def score(of: History, row: int, head: int, k: int) -> float:
        if k - of.pads[row] < sinks or newest(of, k, recent):
            return math.inf
        near = any(int(ids[row, b]) == begin and b - 4 <= k < b + 8 for b in range(of.pads[row], of.total))
        near |= any(int(ids[row, e]) == end and e - 8 <= k < e + 4 for e in range(of.pads[row], of.total))
        return k + (1e9 if near else 0)

    return score


def expected(sinks: int, future: int, frequencies: list[float]) -> Score:
    """Rotation of half-split channels, pair by pair; the mean over future places place by place."""

    def turned(vector: Tensor, by: int) -> Tensor:
        half, x = len(frequencies), vector.tolist()
        out = list(x)
        for i, f in enumerate(frequencies):
            c, s = math.cos(by * f), math.sin(by * f)
            out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
        return vector.new_tensor(out)

    def of_head(of: History, row: int, head: int) -> dict[int, float]:
        keys = [k for k in sorted(of.kept[row, head]) if k - of.pads[row] >= sinks]
        result = dict.fromkeys(keys, 0.0)
        place = of.total - of.pads[row]
        for h in of.of_group(head):
            plain = [
                turned(of.query[t][row, h].double(), of.pads[row] - t) for t in range(of.pads[row] + sinks, of.total)
            ]
            mean = sum(plain) / len(plain)
            covariance = sum(torch.outer(q - mean, q - mean) for q in plain) / len(plain)
            units = torch.eye(len(mean), dtype=torch.float64)
            matrix = sum(torch.stack([turned(u, place + t) for u in units], 1) for t in range(future)) / future
            mean, covariance = matrix @ mean, matrix @ covariance @ matrix.T
            logits = {}
            for k in keys:
                key = of.key[row, head, k].double()
                logits[k] = float(key @ mean * of.scaling + key @ covariance @ key * of.scaling**2 / 2)
            total = sum(math.exp(x - max(logits.values())) for x in logits.values())
            for k in keys:
                result[k] += math.exp(logits[k] - max(logits.values())) / total / of.group
        return {k: share * float(of.value[row, head, k].double().norm()) for k, share in result.items()}

    def score(of: History, row: int, head: int, k: int) -> float:
        if (row, head, of.total) not in of.notes:
            of.notes[row, head, of.total] = of_head(of, row, head)
        return of.notes[row, head, of.total].get(k, math.inf)

    return score


def fastgen(marks: set[int], heavy: float, window: float, threshold: float, ids: Tensor) -> Score:
    def sets(of: History, row: int, head: int, tokens: int) -> list[set[int]]:
        kept = of.kept[row, head]
        first = {k for k in kept if k == of.pads[row]}
        marked = first | {k for k in kept if int(ids[row, k]) in marks}
        ranked = sorted(kept, key=lambda k: observed(of, row, head, k), reverse=True)
        return [first, marked, marked | set(ranked[: int(tokens * heavy)])]

    def decide(of: History, row: int, head: int) -> tuple[int, int]:
        tokens = of.total - of.pads[row]
        found, reach = sets(of, row, head, tokens), int(tokens * window)
        for number in range(4):
            mass = 0.0
            for h in of.of_group(head):
                for t, given in of.given[row, h].items():
                    near = {k for k in given if k > t - reach} if number == 3 else set()
                    mass += sum(given[k] for k in given if k in found[min(number, 2)] | near)
            if mass / of.group / tokens >= threshold:
                return number, tokens
        return 4, tokens

    def score(of: History, row: int, head: int, k: int) -> float:
        if (row, head) not in of.notes:
            of.notes[row, head] = decide(of, row, head)
        number, tokens = of.notes[row, head]
        if number == 4:
            return k
        found = sets(of, row, head, tokens)
        near = number == 3 and newest(of, k, int(tokens * window))
        return k if near or k in found[min(number, 2)] else -math.inf

    return score


def adaptive(budget: int, alpha: float, window: int) -> reference.Spread:
    """Ada-KV as its paper has it: the window in every head, and the rest of a layer's keys to its highest scores."""

    def spread(layer: int, scores: reference.Scores) -> dict[reference.Head, int]:
        limits = {}
        for row in {row for row, _ in scores}:
            heads = {head: sorted(found.values(), reverse=True) for (r, head), found in scores.items() if r == row}
            before = {head: [s for s in ranked if s < math.inf] for head, ranked in heads.items()}
            safe = int((budget - window) * alpha + 1e-9)
            for head in heads:
                limits[row, head] = window + min(safe, len(before[head]))
            rest = sorted(((s, head) for head, ranked in before.items() for s in ranked[safe:]), reverse=True)
            for _, head in rest[: budget * len(heads) - sum(limits[row, head] for head in heads)]:
                limits[row, head] += 1
        return limits

    return spread


def pyramid(budget: int, beta: float, window: int, layers: int) -> reference.Spread:
    """PyramidKV as its paper has it: the window in every layer, and from twice the rest down to a β-th of it."""

    def spread(layer: int, scores: reference.Scores) -> dict[reference.Head, int]:
        rest, limits = budget - window, {}
        for head, found in scores.items():
            most = min(2 * rest - rest / beta, max(rest, len(found) - window))
            limits[head] = round(window + most - (2 * most - 2 * rest) * layer / (layers - 1))
        return limits

    return spread
