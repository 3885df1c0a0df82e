"""What is stored. Money is integer micro-units, time is milliseconds since 1970 (UTC).

The `log` holds everything that happened, in order. `PROJECTIONS` are tables that `projection` derives from it, and
could be thrown away and rebuilt. `names` stand beside the log, so that a person's name can be
erased, `sealed_keys`, so that keys of updates that nobody pays can be destroyed, and `cosignatures` of witnesses;
`head` and `tiles` are the Merkle tree over the log.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()
# SQLite numbers rows only in a column of type INTEGER.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Column[str]:
    return Column("id", String(40), primary_key=True)


log = Table(
    "log",
    metadata,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    # The first entry of a command carries the caller's key and what it asked for, and the answer where that does
    # not follow from the entry: a repeat under the same key gets the first answer.
    Column("key_hash", String(64)),
    Column("request_hash", String(64)),
    Column("answer", Text),
    Column("hash", String(64), nullable=False),
    Index("log_of_kind", "kind", "seq"),
    # Who asks for the entries in their name, or of a round, must not wait for a walk through the whole log.
    Index("log_of_actor", "actor", "seq"),
    Index("log_of_subject", "subject", "seq"),
    Index("log_of_key", "key_hash", "actor", unique=True),
)

# One row. Every write locks it first: writes are serial, so the log has no forks and checks see the newest state.
head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_id", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("root", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("frontier", Text, nullable=False),
    Column("signature", String(128), nullable=False),
    # The key that signs: a broker with another one does not write.
    Column("signed_by", String(64), nullable=False),
    # Whether the last broker closed the file in order: a copy of an unclean file needs its WAL.
    Column("clean", Boolean, nullable=False),
)

tiles = Table(
    "tiles",
    metadata,
    Column("level", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    PrimaryKeyConstraint("level", "place"),
)

# Beside the log: erased on request, bound to it by a salted hash.
names = Table(
    "names",
    metadata,
    Column("party_id", String(40), primary_key=True),
    Column("name", String(80), nullable=False),
    Column("salt", String(32), nullable=False),
)

parties = Table(
    "parties",
    metadata,
    _id(),
    Column("role", String(10), nullable=False),
    Column("name_hash", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Sellers only: the lifetime cap and its δ, from which follows what the wallet watches.
    Column("cap_epsilon", Float),
    Column("delta", Float),
    # Ed25519, and what this party signs with it: "nothing" (no key), "bids", or "everything" that it states.
    Column("public_key", String(64)),
    Column("signs", String(10), nullable=False),
    # The digest of the data set that a seller attests to sell from: one wallet per data set.
    Column("dataset_sha256", String(64)),
    Column("suspended", Text),
    Column("erased_ms", BigInteger),
    Index("parties_by_age", "created_ms", "id"),
    Index("parties_by_dataset", "dataset_sha256", unique=True),
)

tokens = Table(
    "tokens",
    metadata,
    _id(),
    Column("party_id", String(40), nullable=False, index=True),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("scope", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
)

tasks = Table(
    "tasks",
    metadata,
    _id(),
    Column("buyer_id", String(40), nullable=False, index=True),
    Column("title", String(120), nullable=False),
    Column("mechanism", String(60), nullable=False),
    Column("settings", Text, nullable=False),
    Column("budget_micro", BigInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("epsilon_max", Float, nullable=False),
    Column("sampling_rate", Float, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("delta", Float, nullable=False),
    # Who keeps bids sealed until bidding ends: "broker" (it sees them) or "bidder" (commit, then reveal).
    Column("sealing", String(10), nullable=False),
    Column("buyer_may_close", Boolean, nullable=False),
    Column("bid_seconds", Integer, nullable=False),
    Column("reveal_seconds", Integer, nullable=False),
    Column("delivery_seconds", Integer, nullable=False),
    Column("review_seconds", Integer, nullable=False),
    Column("dispute_seconds", Integer, nullable=False),
    Column("ruling_seconds", Integer, nullable=False),
    Column("arbiter_id", String(40)),
    # How updates travel: "open", or "sealed" under a key that the buyer gets when it pays.
    Column("delivery", String(10), nullable=False),
    # Whether only sellers that attest their data set may bid.
    Column("attested", Boolean, nullable=False),
    # Against whom sales protect: "local", or "aggregate" where the buyer sees only a secure sum.
    Column("trust", String(10), nullable=False),
    Column("honest_share", Float, nullable=False),
    # Of the buyer's own making where it signs: one signed task is one task.
    Column("nonce", String(64)),
    Column("created_ms", BigInteger, nullable=False),
    Index("tasks_by_age", "created_ms", "id"),
    Index("tasks_by_nonce", "buyer_id", "nonce", unique=True),
)

rounds = Table(
    "rounds",
    metadata,
    _id(),
    Column("task_id", String(40), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(10), nullable=False, index=True),
    Column("budget_micro", BigInteger, nullable=False),
    Column("mechanism_version", String(80), nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("bid_deadline_ms", BigInteger, nullable=False),
    Column("closed_ms", BigInteger),
    Column("reveal_deadline_ms", BigInteger),
    Column("delivery_deadline_ms", BigInteger),
    Column("review_deadline_ms", BigInteger),
    Column("dispute_deadline_ms", BigInteger),
    Column("ruling_deadline_ms", BigInteger),
    Column("ended_ms", BigInteger),
    # Sellers that bid, also while bids come in: a page that counted them anew would take longer with each.
    Column("bids", Integer, nullable=False, default=0),
    Column("revealed", Integer, nullable=False, default=0),
    Column("sellers", Integer, nullable=False, default=0),
    Column("awarded_micro", BigInteger, nullable=False, default=0),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    Column("total_epsilon", Float, nullable=False, default=0.0),
    # The most that anybody was paid per unit of ε: what a losing seller compares its price with.
    Column("top_price", Float),
    # What the buyer reports of its model after the round.
    Column("model_accuracy", Float),
    # Orders equal bids; drawn from all bids' nonces when the auction is held.
    Column("seed", BigInteger),
    Column("fault", Text),
    UniqueConstraint("task_id", "number"),
)

bids = Table(
    "bids",
    metadata,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("commitment", String(64), nullable=False),
    Column("signature", String(128)),
    # Unknown until revealed where the bidder seals.
    Column("nonce", String(64)),
    Column("valuation", Float),
    Column("epsilon", Float),
    Column("data_size", Float),
    Column("accuracy", Float),
    # The offer after the wallet was looked at in the auction; NULL where it left the offer alone.
    Column("trimmed_epsilon", Float),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("round_id", "seller_id"),
    sqlite_with_rowid=False,  # the key is the row's place: one page to flush instead of two
)

awards = Table(
    "awards",
    metadata,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("payment_micro", BigInteger, nullable=False),
    Column("claim_sha256", String(64)),
    Column("claimed_ms", BigInteger),
    # Of a sealed update: the digest of its key from the claim on, the key itself once it is paid.
    Column("key_sha256", String(64)),
    Column("key", String(64)),
    Column("usable", Boolean),
    Column("fault", Text),
    Column("dispute", Text),
    Column("ruling", Boolean),
    # What the wallet holds: reserved by the auction, then charged (an update was announced) or void (none was).
    Column("charge", String(10), nullable=False),
    # The log entry that charged the wallet, or freed it.
    Column("settled_seq", BigInteger),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    PrimaryKeyConstraint("round_id", "seller_id"),
    Index("awards_of_seller", "seller_id", "seq"),
)

# Double entry: the postings of one log entry sum to zero.
postings = Table(
    "postings",
    metadata,
    Column("seq", BigInteger, nullable=False),
    Column("account", String(60), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    PrimaryKeyConstraint("seq", "account"),
    Index("postings_of_account", "account", "seq", "amount_micro"),
)

# Beside the log: keys of sealed updates, wrapped with the broker's own, until their round is settled.
sealed_keys = Table(
    "sealed_keys",
    metadata,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("wrapped", String(200), nullable=False),
    PrimaryKeyConstraint("round_id", "seller_id"),
)

# What parties asked to be paid out, and the entry that paid it.
payouts = Table(
    "payouts",
    metadata,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("party_id", String(40), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    # Of the party's own making where it signs: one signed request is one payout.
    Column("nonce", String(64)),
    Column("paid_seq", BigInteger),
    Index("payouts_of_party", "party_id", "seq"),
    Index("payouts_by_nonce", "party_id", "nonce", unique=True),
)

# Beside the log: witnesses' signatures over its heads. They have no effect on any party.
cosignatures = Table(
    "cosignatures",
    metadata,
    Column("witness", String(80), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("root", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("public_key", String(64), nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("signature", String(128), nullable=False),
    PrimaryKeyConstraint("witness", "size"),
)

PROJECTIONS = (parties, tokens, tasks, rounds, bids, awards, postings, payouts)
