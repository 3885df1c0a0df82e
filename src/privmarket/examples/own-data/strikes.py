"""A model of bird strikes on 41 airlines' private reports: what the buyer had, what it bought, what that cost."""

import privmarket as pm


def task() -> pm.Task:
    """Two in a hundred strikes are the buyer's own, a fifth is kept for testing, the airlines hold the rest."""
    return pm.Task.from_csv("strikes.csv", schema="strikes.toml", public_share=0.02, test_share=0.2, seed=1)


if __name__ == "__main__":
    strikes = task()
    print("\n".join(strikes.describe()))
    result = pm.federate(strikes, trust="aggregate", wallet=1.0, rounds=10, budget=5.0)
    score = strikes.score
    print(f"your own {len(strikes.public)} records: {score.heading} {score.format(result.score_before)}")
    print(f"with {result.spent:.2f} credits: {score.heading} {score.format(result.score)}")
    print(result.statement("US Airways"))
    result.save_model("model.safetensors")
