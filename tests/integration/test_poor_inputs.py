"""Poor inputs: each ends in one clear line on standard error and exit code 2, and nothing hangs.

They run in this process, through `main`, as the shell would start it.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import sys

import pytest

from privmarket.cli import main

RULES = """
import numpy as np
def posted(bids, budget, price: float = 0.5):
    sold = bids.epsilon * (bids.valuation <= price)
    return sold, price * sold
def greedy(bids, budget):
    return 2 * bids.epsilon, bids.valuation
def crash(bids, budget): return 1 / 0
def shapes(bids, budget):
    return bids.epsilon[:1], bids.valuation
def below(bids, budget): return -bids.epsilon, bids.valuation
def nothing(bids, budget): return None
def texts(bids, budget): return "much", "little"
def one(bids): return bids
def needs(bids, budget, price): return bids.epsilon, bids.valuation
def imaginary(bids, budget): return bids.epsilon * 1j, bids.valuation
def quits(bids, budget): exit("enough")
class Odd(BaseException): pass
def odd(bids, budget): raise Odd("strange")
import privmarket
class Unfinished(privmarket.Mechanism):
    name = "unfinished"
class Nameless(privmarket.Mechanism):
    def clear(self, bids, budget): return privmarket.Outcome(0 * bids.epsilon, 0 * bids.epsilon)
class Wordy(Nameless):
    name = "wordy"
    guarantees = ("truthful",)
def chatty(bids, budget): raise ValueError("one line\\nand another")
def silent(bids, budget): raise AssertionError
"""
HEADER = "client,valuation,epsilon\n"
APP = "[tool.flwr.app]\npublisher = 'x'\n[tool.flwr.app.components]\nserverapp = '{0}'\nclientapp = '{0}'\n"
FILES = {
    "bids.csv": HEADER + "ann,0.2,1\nbob,0.9,2\ncyd,0.4,0.5\n",
    "empty.csv": "",
    "header.csv": HEADER,
    "nocol.csv": "client,price,epsilon\nann,1,2\n",
    "words.csv": HEADER + "ann,cheap,1\n",
    "neg.csv": HEADER + "ann,-1,1\n",
    "nan.csv": HEADER + "ann,nan,1\n",
    "inf.csv": HEADER + "ann,1,inf\n",
    "zero.csv": HEADER + "ann,1,0\n",
    "twice.csv": HEADER + "ann,1,1\nann,2,1\n",
    "short.csv": HEADER + "ann,1\n",
    "huge.csv": HEADER + "ann,0.1,99\n",
    "badsales.csv": "epsilon\nmany\n",
    "nosales.csv": "price\n1\n",
    "bad.toml": "epsilon_per_sale = 'much'\n",
    "unknown.toml": "epsilon_per_sail = 1\n",
    "nottoml.toml": "=\n",
    "neg.toml": "epsilon_per_sale = -1\n",
    "cfg.toml": "[auction]\nbudget = 'x'\n",
    "cfg2.toml": "auction = 3\n",
    "cfg3.toml": "[federate]\nroundz = 3\n",
    "text.safetensors": "hello",
    "w.jsonl": "not json\n",
    "syntax.py": "def (\n",
    "rules.py": RULES,
    "nul.csv": HEADER + "ann,0.2\x00,1\n",
    "percent.csv": HEADER + "ann,20%,1\n",
    "size.csv": "client,valuation,epsilon,data_size\nann,0.2,1,-5\n",
    "accuracy.csv": "client,valuation,epsilon,accuracy\nann,0.2,1,140\n",
    "cfg6.toml": "[auction]\nbudget = [1, 2]\n",
    "cfg7.toml": "[auction.budget]\nx = 1\n",
    "nobody.toml": "trust = ['nobody']\n",
    "true.toml": "[auction]\nbudget = true\n",
    "epsilons.csv": "epsilon,epsilon\n1,2\n",
    "price.toml": "price = { local = -1 }\n",
    "again.toml": "honest_share = 0.67\nhonest_share = 0.5\n",
    "half.csv": "epsilon,steps\n1,2.5\n",
    "minus.csv": "epsilon,count\n1,-3\n",
    "rate.csv": "epsilon,sampling_rate\n1,2\n",
    "app-plain/pyproject.toml": "[project]\nname = 'x'\n",
    "app-half/pyproject.toml": APP.format("broken:server").replace("client", "other"),
    "app-gone/pyproject.toml": APP.format("gone:server"),
    "app-empty/pyproject.toml": APP.format("app_of_nothing:server"),
    "app-empty/app_of_nothing.py": "x = 1\n",
    "app-number/pyproject.toml": APP.format("app_of_numbers:x"),
    "app-number/app_of_numbers.py": "x = 1\n",
    "app-text/pyproject.toml": "not toml = =\n",
    "blank.csv": "\n\n\n",
    "columns.csv": "client,valuation,valuation,epsilon\nann,1,2,1\n",
    "json.json": '{"a": 1}',
    "quote.csv": HEADER + '"ann,0.2,1\n',
    "latin.csv": HEADER + "j\udcf6rg,0.2,1\n",
    "nameless.csv": HEADER + ",0.2,1\n",
    "beyond.csv": HEADER + "ann,1e309,1\n",
    "list.toml": "federate = [1]\n",
    "wallet.jsonl": "",
    "sites.csv": "site,age,ill\na,30,yes\nb,40,no\na,50,no\nb,20,yes\n",
    "bin.csv": "\udcff\udcfe\x00\x01" * 20,
}
# what is typed after `privmarket` → what the line must say
BAD = {
    "auction empty.csv --budget 1": "empty.csv, line 1: missing column 'client'",
    "auction header.csv --budget 1": "header.csv: no bids below the header",
    "auction nocol.csv --budget 1": "nocol.csv, line 1: missing column 'valuation'",
    "auction words.csv --budget 1": "words.csv, line 2, field valuation: 'cheap'",
    "auction neg.csv --budget 1": "neg.csv, line 2, field valuation: '-1'",
    "auction nan.csv --budget 1": "nan.csv, line 2, field valuation: 'nan'",
    "auction inf.csv --budget 1": "inf.csv, line 2, field epsilon: 'inf'",
    "auction zero.csv --budget 1": "zero.csv, line 2, field epsilon: '0'",
    "auction twice.csv --budget 1": "twice.csv, line 3, field client: 'ann' was already on line 2",
    "auction short.csv --budget 1": "short.csv, line 2: 2 fields where the header has 3",
    "auction huge.csv --budget 1": "client 'ann' offers ε = 99: above the market's limit epsilon",
    "auction folder --budget 1": "folder: cannot be read: Is a directory",
    "auction nowhere.csv --budget 1": "nowhere.csv: cannot be read: No such file or directory",
    "auction bids.csv": "Missing option '--budget'.",
    "auction --budget 1": "Missing argument 'BIDS.csv'.",
    "auction bids.csv --budget": "Option '--budget' requires an argument.",
    "auction bids.csv --budget 0": "budget is 0.0: must be finite and above 0",
    "auction bids.csv --budget -3": "budget is -3.0: must be finite and above 0",
    "auction bids.csv --budget nan": "budget is nan: must be finite and above 0",
    "auction bids.csv --budget inf": "budget is inf: must be finite and above 0",
    "auction bids.csv --budget 1 extra": "Got unexpected extra argument",
    "auction bids.csv --budget 1 --mechanism vgc": "unknown mechanism 'vgc'",
    "auction bids.csv --budget 1 --mechanism pac:": "unknown mechanism 'pac:'",
    "auction bids.csv --budget 1 --mechanism :x": "rule '' cannot be imported: Empty module name",
    "auction bids.csv --budget 1 --mechanism rules.py:nobody": "unknown rule in rules.py 'nobody'",
    "auction bids.csv --budget 1 --mechanism rules.py:greedy": "greedy: epsilon of client 'ann' is 2",
    "auction bids.csv --budget 1 --mechanism rules.py:shapes": "payment: shape",
    "auction bids.csv --budget 1 --mechanism rules.py:crash": "rules.py, line 8: ZeroDivisionError",
    "auction bids.csv --budget 1 --mechanism syntax.py:f": "rule 'syntax.py' cannot be imported: invalid syntax",
    "auction bids.csv --budget 1 --mechanism nowhere.py:f": "rule 'nowhere.py' cannot be imported: nowhere.py is no Pytho",
    "auction bids.csv --budget 1 --mechanism os:getcwd": "getcwd() is no auction rule",
    "auction bids.csv --budget 1 --mechanism rules.py:posted --set price=dear": "rules.py:posted: setting price is 'dear'",
    "auction bids.csv --budget 1 --mechanism rules.py:posted --set prize=1": "rules.py:posted: unknown setting 'prize'",
    "auction bids.csv --budget 1 --mechanism vcg --set winners=2.5": "vcg: setting winners is 2.5",
    "auction bids.csv --budget 1 --mechanism vcg --set winners=-1": "vcg: winners is -1: must be at least 1",
    "auction bids.csv --budget 1 --set epsilon_max=0": "epsilon_max is 0: must be finite and above 0",
    "auction bids.csv --budget 1 --set epsilon_max=nan": "mean-field-menu: setting epsilon_max is 'nan'",
    "auction bids.csv --budget 1 --set =3": "mean-field-menu: unknown setting ''",
    "auction bids.csv --budget 1 --set market=5": "--set market=5: nothing has a setting 'market'",
    "auction bids.csv --budget 1 --set rule=5": "mean-field-menu: unknown setting 'rule'",
    "auction bids.csv --budget 1 --out folder": "--out folder is a folder",
    "auction bids.csv --budget 1 --out bids.csv/x.csv": "--out bids.csv/x.csv: bids.csv is not a folder",
    "auction bids.csv --budget 1 --jsn": "No such option '--jsn'.",
    "--confg x auction bids.csv": "No such option '--confg'. Did you mean '--config'?",
    "--config cfg.toml auction bids.csv": "Invalid value for '--budget': 'x' is not a valid float.",
    "--config cfg2.toml auction bids.csv": "--config cfg2.toml: auction is 3",
    "--config cfg3.toml federate": "--config cfg3.toml [federate]: unknown option 'roundz'",
    "--config folder auction bids.csv": "--config folder: Is a directory",
    "actoin bids.csv": "No such command 'actoin'. Did you mean 'auction', 'account'?",
    "audit --mechanism nobody": "unknown mechanism 'nobody'",
    "audit": "Missing option '--mechanism'.",
    "audit --mechanism pac --clients 0": "clients is 0 (give a whole number, at least 1)",
    "audit --mechanism pac --clients -2": "clients is -2",
    "audit --mechanism pac --clients ten": "Invalid value for '--clients': 'ten' is not a valid integer.",
    "audit --mechanism pac --budget 0": "budget is 0.0: must be finite and above 0",
    "audit --mechanism pac --profiles 0": "profiles is 0",
    "audit --mechanism pac --scenario gauss": "unknown scenario 'gauss'",
    "audit --mechanism pac --scenario words.csv": "words.csv, line 2, field valuation: 'cheap'",
    "audit --mechanism pac --objective aggregate-error:heterogenity=1": "aggregate-error: unknown parameter 'heterogenity'",
    "audit --mechanism pac --objective aggregate-error:heterogeneity=x": "aggregate-error: parameter 'heterogeneity=x'",
    "audit --mechanism pac --coalition 1 --clients 5 --profiles 1": "Invalid value for '--coalition': 1 is not in the range x>=2.",
    "audit --mechanism pac --coalition -1 --clients 5 --profiles 1": "Invalid value for '--coalition': -1 is not in the range x>=2",
    "audit --mechanism pac --attack fierce": "unknown attack 'fierce'",
    "audit --mechanism pac --seed -1 --clients 5 --profiles 1": "Invalid value for '--seed': -1 is not in the range x>=0.",
    "audit --mechanism pac --coalition 50 --clients 5 --profiles 1": "coalitions of 50 among 5 clients",
    "auction bids.csv --budget 1 --mechanism PAC": "did you mean 'pac'?",
    "account": "no sales to account for",
    "account --sale one": "sale 'one': could not convert string to float: 'one'",
    "account --sale 1x": "sale '1x'",
    "account --sale 0x3": "sale '0x3': a sale of ε = 0.0: must be finite and above 0",
    "account --sale -1x3": "sale '-1x3': a sale of ε = -1.0: must be finite and above 0",
    "account --sale 1x-3": "sale '1x-3': a sale repeated -3 times",
    "account --sale 1,2,3": "sale '1,2,3': sampling rate is 2.0: must be above 0 and at m",
    "account --sale 1 --delta 0": "delta is 0.0: must lie between 1e-12 and 0.5",
    "account --sale 1 --delta 2": "delta is 2.0: must lie between 1e-12 and 0.5",
    "account --sale 1 --cap 0": "wallet caps are [0.0]",
    "account --file badsales.csv": "badsales.csv, line 2: could not convert string to float: 'ma",
    "account --file nosales.csv": "nosales.csv: columns are price",
    "account --sale 1 --unit family": "unit is 'family'",
    "account --sale 1 --trust everybody": "trust is 'everybody'",
    "account --sale 1 --plot folder": "--plot folder is a folder",
    "equilibrium --grid 3": "grid '3' is not of the form 64x64x50",
    "equilibrium --grid 0x0x0": "grid: valuation_cells is 0, at least 4 needed",
    "equilibrium --grid 1000000x1000000x1000000": "not enough memory",
    "equilibrium --budget 0": "budget_per_client is 0.0: must be above 0",
    "equilibrium --horizon -1": "horizon is -1.0: must be above 0",
    "equilibrium --scheme magic": "unknown scheme 'magic'",
    "equilibrium --scenario nobody": "unknown scenario 'nobody'",
    "equilibrium --kinds 0": "kinds is 0: must be above 0",
    "federate --clients 0": "clients is 0",
    "federate --clients 1.5": "Invalid value for '--clients': '1.5' is not a valid integer.",
    "federate --rounds 0": "rounds is 0",
    "federate --rounds abc": "Invalid value for '--rounds': 'abc' is not a valid integer.",
    "federate --budget -1": "budget is -1.0",
    "federate --total-budget 0": "total_budget is 0.0",
    "federate --alpha 0": "alpha is 0.0",
    "federate --dataset cifar": "unknown task 'cifar'",
    "federate --trust none": "unknown trust 'none'",
    "federate --honest-share 2": "honest_share is 2.0",
    "federate --dropout 1.5": "dropout is 1.5",
    "federate --wallet 0": "wallet is 0.0",
    "federate --wallet-policy hoard": "unknown wallet policy 'hoard'",
    "federate --delta 1": "delta is 1.0",
    "federate --types new": "unknown types 'new'",
    "federate --aggregation mean": "unknown aggregation 'mean'",
    "federate --workers 0 --rounds 1 --clients 4": "--workers is 0",
    "federate --set model=vit --rounds 1 --clients 4": "unknown model 'vit'",
    "federate --set steps=many": "steps is 'many'",
    "federate --set clip_norm=-1": "clip_norm is -1",
    "federate --set features=magic --rounds 1 --clients 4": "unknown features 'magic'",
    "federate --set": "Option '--set' requires an argument.",
    "federate --mechanism-set x": "--set 'x'",
    "federate --mechanism-set nothing=1 --rounds 1 --clients 4": "mean-field-menu: unknown setting 'nothing'",
    "federate --scenario nowhere.csv --rounds 1 --clients 4": "nowhere.csv: cannot be read: No such file or directory",
    "federate --checkpoint bids.csv --rounds 1 --clients 4": "bids.csv in .: cut short or altered",
    "federate --report folder": "--report folder is a folder",
    "federate --save bids.csv/x.json": "--save bids.csv/x.json: bids.csv is not a folder",
    "federate --watch folder": "--watch folder is a folder",
    "federate --strategy clever --rounds 1 --clients 4": "unknown strategy 'clever'",
    "plan --target 2 --dataset digits": "the target is 2, and no accuracy is better than 1",
    "plan --target 0.9 --total 5": "--target and --total exclude each other",
    "plan --money a,b": "--money 'a,b'",
    "plan --rounds x": "--rounds 'x'",
    "plan --effort huge": "unknown effort 'huge'",
    "plan --plot x.doc": "a plot called 'x.doc'",
    "plan --dataset nobody": "unknown task 'nobody'",
    "plan --total -5": "money to plan for: [-5.0]",
    "plan --clients 0": "clients is 0",
    "plan --money ''": "money to plan for: []",
    "plan --rounds 0": "rounds must be above 0",
    "plan --workers 0": "Invalid value for '--workers'",
    "plan --folder bids.csv --effort quick": "--folder bids.csv/a-run.json: bids.csv is not a folder",
    "plan --data empty.csv --label y --client c": "empty.csv: the file is empty",
    "plan --data nowhere.csv --label ill --client site": "nowhere.csv: no such file",
    "plan --data sites.csv --label sick --client site": "sites.csv: no column 'sick' for the label",
    "plan --data sites.csv --label ill": "sites.csv: which column names the client?",
    "plan --data sites.csv --label ill --client site": "column 'age' has no public scale",
    "plan --data sites.csv --task syntax.py:task": "--task and --data exclude each other",
    "plan --task syntax.py:task": "'syntax.py' cannot be imported",
    "plan --task nowhere.py:task": "nowhere.py is no Python file",
    "plan --public sites.csv": "--public sites.csv without --data (say how many records clients declare",
    "plan --public sites.csv --records 30": "30 records for each client, and nothing says how many clients",
    "plan --records 30": "--records without a file of your own records",
    "plan --public sites.csv --records 30 --data sites.csv": "--records beside --data, which has the clients' records",
    "plan --public sites.csv --records 30 --clients 3 --person age": "--person without --data",
    "plan --public sites.csv --records nowhere.csv": "nowhere.csv: no such file",
    "plan --public sites.csv --records 30 --clients 5 --label ill --bids bids.csv": "--clients 5, and bids.csv has",
    "plan --dataset digits --public many": "--public many with --dataset",
    "plan --dataset digits --public 5000": "only 143 are kept back from the clients",
    "predict text.safetensors sites.csv": "a model is two files: NAME.safetensors, NAME.json",
    "attack --epsilon 0": "epsilon is 0.0",
    "attack --epsilon abc": "Invalid value for '--epsilon': 'abc' is not a valid float.",
    "attack --trials 0": "trials is 0",
    "attack --attack guess": "unknown attack 'guess'",
    "attack --noise-share -1": "noise_share is -1.0",
    "attack --plot folder": "--plot folder is a folder",
    "train pac": "'pac' is not a mechanism that is trained",
    "train mfg-regretnet --profile fast": "unknown profile 'fast'",
    "train mfg-regretnet --clients 1": "--clients is 1: must be at least 2",
    "train mfg-menunet --scenario bids.csv": "bids: 3 past bids are too few to learn from",
    "train mfg-menunet --kappa -1 --objective aggregation-error --profile quick": "aggregation error: kappa -1.0 and heterogeneity 0.1",
    "train MFG-MENUNET": "choose one of: dm-regretnet, mfg-menunet",
    "train": "Missing argument 'MECHANISM'.",
    "audit --mechanism mfg-regretnet --set weights=nowhere.safetensors": "no weights at nowhere.safetensors",
    "audit --mechanism mfg-regretnet --set weights=text.safetensors": "text.safetensors is not a whole safetensors file: Error whil",
    "sample nothing.csv": "unknown sample 'nothing.csv'",
    "sample bids.csv": "bids.csv is there already",
    "sample bids.csv --to bids.csv": "could not write bids.csv/bids.csv: File exists",
    "example flower": "unknown example 'flower'",
    "example own-rule --to bids.csv": "could not write bids.csv/own-rule: File exists",
    "data get imagenet": "unknown data set 'imagenet'",
    "seller check nowhere.toml": "nowhere.toml: cannot be read as a policy: No such file or directory (check the path",
    "seller check bin.csv": "bin.csv: cannot be read as a policy: not UTF-8 text",
    "seller statement folder": "folder: not a wallet file: Is a directory",
    "account --file nowhere.csv": "nowhere.csv: cannot be read as CSV: No such file or directory (check the path",
    "account --file bin.csv": "bin.csv: cannot be read as CSV: not UTF-8 text",
    "auction bin.csv --budget 1": "bin.csv: not a CSV text file: not UTF-8 text (save it as UTF-8 CSV)",
    "register init bids.csv": "bids.csv: File exists (name a folder that can be made)",
    "register show bids.csv": "no register of sellers: Not a directory",
    "register show nowhere": "no register of sellers: No such file or directory",
    "register sign nowhere nowhere.json": "nowhere.json: No such file or directory (give the file of a roster)",
    "register sign nowhere json.json": "json.json: no roster",
    "witness http://127.0.0.1:1 --file folder": "folder is not the file of a witness: Is a directory",
    "witness http://127.0.0.1:1 --file bin.csv": "bin.csv is not the file of a witness: not UTF-8 text",
    "witness http://127.0.0.1:1 --file words.csv": "words.csv is not the file of a witness (give another file",
    "broker verify --witness folder": "folder is not the file of a witness: Is a directory",
    "serve --database sqlite:///new.db --key folder --port 0": "cannot read a key from folder: Is a directory (check the path",
    "serve --database sqlite:///new.db --key bids.csv --port 0": "cannot read a key from bids.csv: not a PEM file (check the path",
    "broker restore empty.csv --database sqlite:///new.db": "empty.csv: not a whole backup: it ends too early",
    "seller attest nowhere.csv": "'nowhere.csv' does not exist",
    "seller deliver r nowhere.bin": "'nowhere.bin' does not exist",
    "data describe nowhere.csv": "nowhere.csv: no such file (check the path)",
    "plan --bids nowhere.csv": "nowhere.csv: cannot be read: No such file or directory (check the path)",
    "predict nowhere.safetensors sites.csv": "nowhere.json: No such file or directory (a model is two files",
    "--config folder demo": "--config folder: Is a directory (check the path)",
    "bench federate --before nowhere": "--before nowhere: no checkout of this project",
    "seller check bad.toml": "bad.toml: epsilon_per_sale = 'much': not a number",
    "seller check unknown.toml": "unknown.toml: unknown key 'epsilon_per_sail'",
    "seller check nottoml.toml": "nottoml.toml: cannot be read as a policy: Invalid statement",
    "seller check neg.toml": "neg.toml: policy: epsilon_per_sale is -1.0",
    "seller statement nowhere.jsonl": "nowhere.jsonl: not a wallet file",
    "seller statement w.jsonl": "w.jsonl: not a wallet file",
    "seller bid x --valuation 1": "Missing option '--epsilon'.",
    "seller register --url http://127.0.0.1:1 --name x": "Missing option '--cap-epsilon'.",
    "serve --port 99999": "Invalid value for '--port'",
    "serve --rate -1": "Invalid value for '--rate'",
    "witness nonsense --file x.txt": "'nonsense' is no address",
    "broker verify --database sqlite:///nowhere.db": "no database at nowhere.db",
    "broker backup x.gz --database sqlite:///nowhere.db": "no database at nowhere.db",
    "broker restore nowhere.gz --database sqlite:///new.db": "no backup at nowhere.gz",
    "broker verify --database sqlite:///bids.csv": "cannot open database sqlite:///bids.csv: DatabaseError",
    "flower run nowhere": "nowhere has no pyproject.toml",
    "flower run folder": "folder has no pyproject.toml",
    "flower run folder --nodes 0": "0 nodes (give --nodes at least 1)",
    "flower run folder --engine pigeon": "unknown engine 'pigeon'",
    "flower nothing": "No such command 'nothing'.",
    "flower rehearse --deadline -1": "Invalid value for '--deadline'",
    "demo --out bids.csv": "--out bids.csv/demo.html: bids.csv is not a folder",
    "demo --seed x": "Invalid value for '--seed': 'x' is not a valid integer",
    "demo --watch folder": "--watch folder is a folder",
    "mechanisms --verbose": "No such option '--verbose'.",
    "auction blank.csv --budget 1": "blank.csv, line 1: missing column 'client' (found: nothing)",
    "auction columns.csv --budget 1": "columns.csv, line 1: column 'valuation' appears twice",
    "auction json.json --budget 1": "json.json, line 1: missing column 'client'",
    "auction quote.csv --budget 1": "quote.csv, line 2: 1 fields where the header has 3",
    "auction latin.csv --budget 1": "latin.csv: not a CSV text file",
    "auction nameless.csv --budget 1": "nameless.csv, line 2, field client: empty",
    "auction beyond.csv --budget 1": "beyond.csv, line 2, field valuation: '1e309'",
    "auction '' --budget 1": "Is a directory",
    "auction bids.csv --budget 1,5": "'1,5' is not a valid float",
    "auction bids.csv --budget 1 --mechanism ''": "unknown mechanism ''",
    "auction bids.csv --budget 1 --mechanism rules.py": "'rules.py' names a file and no rule in it (write rules.py:NAME",
    "auction bids.csv --budget 1 --mechanism rules.py:below": "below: epsilon of client 'ann' is -1",
    "auction bids.csv --budget 1 --mechanism rules.py:nothing": "nothing returned NoneType, not a pair",
    "auction bids.csv --budget 1 --mechanism rules.py:texts": "epsilon: not an array of numbers",
    "auction bids.csv --budget 1 --mechanism rules.py:one": "one(bids) is no auction rule",
    "auction bids.csv --budget 1 --mechanism graded-ration --set heterogeneity=-1": "heterogeneity -1",
    "auction bids.csv --budget 1 --mechanism ration --set unit_price=free": "ration: setting unit_price is 'free'",
    "auction bids.csv --budget 1 --out ''": "is a folder",
    "--config empty.csv": "Missing command.",
    "--config list.toml federate": "--config list.toml: federate is [1]",
    "--config bids.csv federate": "--config bids.csv: not TOML",
    "help": "No such command 'help'.",
    "audit --mechanism pac --clients 99999999999999 --profiles 1": "not enough memory",
    "account --sale 1xx2": "sale '1xx2'",
    "account --sale nan": "a sale of ε = nan",
    "account --sale 1,0.5": "write EPS, EPSxCOUNT or EPS,RATE,STEPSxCOUNT",
    "account --sale 1e-300": "needs more noise than numbers can hold",
    "account --sale 1x99999999999999999999": "give a count of at most 1e+12",
    "account --file folder": "folder: cannot be read as CSV",
    "equilibrium --grid axbxc": "grid 'axbxc' is not of the form 64x64x50",
    "equilibrium --out bids.csv": "bids.csv is not a folder",
    "attack --trials 1": "trials is 1 (must be finite and at least 50",
    "attack --trials 99999999999": "trials is 99999999999",
    "seller check folder": "folder: ",
    "seller statement wallet.jsonl": "wallet.jsonl: not a wallet file",
    "seller register --url nonsense --name x --cap-epsilon 3": "'nonsense' is no address of a broker",
    "serve --database sqlite:///nowhere/market.db --port 0": "no folder nowhere",
    "broker operator-token --database sqlite:///nowhere.db": "no database at nowhere.db",
    "broker forget --idle-days 3 --database sqlite:///nowhere.db": "no database at nowhere.db",
    "broker restore bids.csv --database sqlite:///new.db": "bids.csv: not a whole backup: Not a gzipped file",
    "flower run folder --nodes 99999999": "99999999 nodes",
    "flower rehearse --out .": "--out . holds other files",
    "auction nul.csv --budget 1": "nul.csv, line 2, field valuation: '0.2\\x00'",
    "auction percent.csv --budget 1": "percent.csv, line 2, field valuation: '20%'",
    "auction size.csv --budget 1": "size.csv, line 2, field data_size: '-5'",
    "auction accuracy.csv --budget 1": "accuracy.csv, line 2, field accuracy: '140'",
    "auction bids.csv --budget 1e400": "budget",
    "auction bids.csv --budget 0x10": "Invalid value for '--budget'",
    "auction bids.csv bids.csv --budget 1": "unexpected extra argument",
    "auction bids.csv --budget 1 --mechanism rules.py:needs": "rules.py:needs needs the setting 'price' (give --set price=VALUE",
    "auction bids.csv --budget 1 --mechanism rules.py:imaginary": "epsilon: not an array of numbers: complex numbers",
    "auction bids.csv --budget 1 --mechanism rules.py:quits": "rule quits ended the program by SystemExit: enough",
    "auction bids.csv --budget 1 --mechanism rules.py:odd": "rules.py, line 19: Odd: strange (mend it there)",
    "federate --rounds 1 --clients 4 --mechanism rules.py:quits": "rule quits ended the program by SystemExit: enough",
    "audit --clients 4 --profiles 1 --mechanism rules.py:quits": "rule quits ended the program by SystemExit: enough",
    "auction bids.csv --budget 1 --mechanism rules.py:Unfinished": "rules.py:Unfinished has no method clear",
    "auction bids.csv --budget 1 --mechanism rules.py:Nameless": "rules.py:Nameless has no name",
    "audit --clients 4 --profiles 1 --mechanism rules.py:Wordy": "rules.py:Wordy: 'truthful' among its guarantees",
    "auction bids.csv --budget 1 --mechanism rules.py:chatty": "ValueError: one line and another (mend it there)",
    "auction bids.csv --budget 1 --mechanism rules.py:silent": ": AssertionError (mend it there)",
    "auction bids.csv --budget 1 --out loop": "could not write loop: a link that leads nowhere",
    "--config true.toml auction bids.csv": "[auction]: budget is true (give a number)",
    "account --file epsilons.csv": "epsilons.csv: columns are epsilon, epsilon",
    "federate --rounds 1 --clients 4 --budget 1e300": "round 0: budget of 1e+300 (give at most",
    "plan --dataset digits --clients 4 --money 1,,2": "--money '1,,2'",
    "--config cfg6.toml auction bids.csv": "[auction]: budget is [1, 2] (give one value)",
    "--config cfg7.toml auction bids.csv": "[auction]: budget is {'x': 1} (give one value)",
    "seller check nobody.toml": "nobody",
    "seller check price.toml": "price",
    "seller check again.toml": "again.toml",
    "account --file half.csv": "half.csv",
    "account --file minus.csv": "minus.csv",
    "account --file rate.csv": "rate.csv",
    "flower run app-plain": "no serverapp and no clientapp under [tool.flwr.app.components]",
    "flower run app-half": "no clientapp under [tool.flwr.app.components]",
    "flower run app-gone": "serverapp = 'gone:server': no module 'gone' in app-gone",
    "flower run app-empty": "'server' is not in app_of_nothing",
    "flower run app-number": "'x' is no app",
    "flower run app-text": "pyproject.toml: not TOML",
    "flower run app-gone --timeout nan": "--timeout nan",
    "flower rehearse --in-process": "--in-process without --sums",
    "flower rehearse --deadline nan": "--deadline nan",
    "broker backup x.gz --database sqlite:///bids.csv": "bids.csv",
    "serve --database sqlite:///bids.csv --port 0": "bids.csv",
}


@pytest.fixture
def here(tmp_path, monkeypatch, request):
    """A folder with the files that the command names."""
    typed = getattr(getattr(request.node, "callspec", None), "params", {}).get("typed", "")
    texts = {name: text.encode("utf-8", "surrogateescape") for name, text in FILES.items()}
    for name, contents in texts.items():
        if name.split("/")[0].split(".")[0] in typed or not typed:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(contents)
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_there_are_more_than_a_hundred():
    assert len(BAD) > 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("typed", "words"), BAD.items())
def test_a_poor_input_ends_in_one_clear_line(typed, words, here, capfd, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["privmarket", *shlex.split(typed)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    assert ended.value.code == 2, said
    assert said.out == ""
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert "Errno" not in lines[0]


def _run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["privmarket", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_full_disk_is_one_line(here, monkeypatch, capfd):
    def full(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "figure.png")

    monkeypatch.setattr("privmarket.cli._auction.print_json", full)
    assert _run(monkeypatch, "auction", "bids.csv", "--budget", "3", "--json") == 2
    assert capfd.readouterr().err == (
        "error: figure.png: No space left on device (run with --verbose to see where)\n"
    )


def test_ctrl_c_says_that_it_stopped(here, monkeypatch, capfd):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("privmarket.cli._auction.read_bids", interrupted)
    assert _run(monkeypatch, "auction", "bids.csv", "--budget", "3") == 130
    assert capfd.readouterr().err == "stopped\n"


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_output_into_a_file_is_utf8_where_the_system_has_no_epsilon(encoding, here, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert _run(monkeypatch, "seller", "policy") == 0
    sys.stdout.flush()
    assert "ε" in written.getvalue().decode("utf-8")


def test_output_may_be_closed(here, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert _run(monkeypatch, "seller", "policy") == 0


def test_a_fault_of_ours_is_not_called_the_users(here, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["privmarket", "auction", "bids.csv", "--budget", "1"])
    monkeypatch.setattr("privmarket.market._bids.read_bids", lambda path: 1 / 0)
    monkeypatch.setattr("privmarket.cli._auction.read_bids", lambda path: 1 / 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        main()
