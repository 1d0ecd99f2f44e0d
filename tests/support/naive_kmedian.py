"""k-median by plain loops: what the kernels are compared with."""

import numpy as np


def cost(X, C, weights=1.0):
    return float((weights * np.linalg.norm(X[:, None, :] - C, axis=2).min(axis=1)).sum())


def naive_nearest(x, C):
    distances = [float(np.linalg.norm(x - c)) for c in C]
    return min(distances), int(np.argmin(distances))


def naive_pick(scores, coin):
    reached, target = 0.0, coin * sum(scores)
    for j, score in enumerate(scores):
        reached += score
        if reached > target:
            return j
    raise AssertionError("no score above zero")


def naive_seeds(X, weights, coins):
    seeds = [X[naive_pick(weights, coins[0][0])]]
    for trials in coins[1:]:
        scores = [w * naive_nearest(x, seeds)[0] for x, w in zip(X, weights, strict=True)]
        scores = scores if sum(scores) > 0 else weights
        tried = [[*seeds, X[naive_pick(scores, coin)]] for coin in trials]
        seeds = min(tried, key=lambda C: round(cost(X, np.array(C), weights), 7))
    return np.array(seeds)


def naive_step(X, weights, C):
    moved = C.copy()
    near = [naive_nearest(x, C) for x in X]
    for number, c in enumerate(C):
        R, total, held = np.zeros(len(c)), 0.0, 0.0
        for x, w, (distance, label) in zip(X, weights, near, strict=True):
            if label == number and distance == 0:
                held += w
            elif label == number:
                R += w / distance * (x - c)
                total += w / distance
        if total > 0 and held < np.linalg.norm(R):
            moved[number] = c + (1 - held / np.linalg.norm(R)) * R / total
    return moved


def naive_centers(X, weights, coins, steps):
    C = naive_seeds(X, weights, coins)
    for _ in range(steps):
        C = naive_step(X, weights, C)
    return C
