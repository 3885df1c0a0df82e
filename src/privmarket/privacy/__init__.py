"""Privacy that is sold: what was released, how much noise it needs, what it costs, what is left.

Begin with `noise_multiplier` (how much noise a sold ε needs) and `Wallet` (a privacy filter: a lifetime cap that
refuses what does not fit). What is exported, in the order of a sale:

- `PrivacyEvent`: what was released, as accountants see it.
- `ReleaseFamily`, `noise_multiplier`, `release_epsilon`: from ε to noise and back.
- `Wallet`, `Wallets`, `WalletFile`: lifetime caps of one client, of many, and of one client on its disk.
- `ReleaseGrid`, `NoiseSource`, `sum_inflation`: the release kernel, which adds exact integer noise to clipped sums.
- `RdpAccountant`, `PldAccountant`, `accounted_epsilon`, `Accountant`: what many releases cost together, composed
  and asked as in dp-accounting; `certify`, `Certificate`: the figures of a finished list.
- `release_statistic` with `Count`, `Mean`, `Histogram`, or a `Statistic` of your own: single statistics with
  discrete Laplace noise. `ReleasedStatistic` is what leaves.
- `OtherRelease`, `LaplaceRelease`, `DiscreteLaplaceRelease`: releases that are not Gaussian, for accountants and
  wallets.
- `SellerPolicy`: what a seller agrees to, as a file.
- `audit_family`, `collect_scores`: lower bounds on ε, from attacks on releases.

Each name is imported when it is first used; `dir` lists them.
"""

# Read the source in this order: `_events`, `_calibration`, `_noise`, `_release`, `_accountant`, `_wallet`,
# `_wallet_store`.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
