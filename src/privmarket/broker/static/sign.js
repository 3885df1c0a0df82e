// Signs in the browser: bids, and everything else that a party with a key states (publish, open, close, abort, claim,
// accept, reject, dispute, rule, report, ask for money). The private key is read from the party's file each time; it is
// not stored, and it is never sent. It can also be made here, and is then saved as a file.
(function () {
  "use strict";
  const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const utf8 = (words) => new TextEncoder().encode(words);
  const random = () => hex(crypto.getRandomValues(new Uint8Array(16)));

  // ---- one spelling per value, as Python writes it: what is signed is a digest of that text ----------------------

  class Float {
    constructor(value) { this.value = value; }
  }

  // The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16 on.
  function floatText(value) {
    if (Object.is(value, -0)) value = 0;
    const [digits, power] = Math.abs(value).toExponential().split("e");
    const plain = digits.replace(".", "");
    const exponent = Number(power);
    let written;
    if (value === 0) written = "0.0";
    else if (exponent < -4 || exponent >= 16) {
      const sign = exponent < 0 ? "-" : "+";
      written = digits + "e" + sign + String(Math.abs(exponent)).padStart(2, "0");
    } else if (exponent < 0) written = "0." + "0".repeat(-exponent - 1) + plain;
    else if (plain.length <= exponent + 1) written = plain + "0".repeat(exponent + 1 - plain.length) + ".0";
    else written = plain.slice(0, exponent + 1) + "." + plain.slice(exponent + 1);
    return (value < 0 ? "-" : "") + written;
  }

  // JSON with sorted keys and no spaces. Whole numbers are BigInts, others are Floats: 1.0 is not 1.
  function canonical(value) {
    if (value instanceof Float) return floatText(value.value);
    if (typeof value === "bigint") return String(value);
    if (value === null || typeof value === "boolean" || typeof value === "string") return JSON.stringify(value);
    const names = Object.keys(value).sort();
    return "{" + names.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
  }

  const digest = async (words) => hex(await crypto.subtle.digest("SHA-256", utf8(words)));

  async function commitment(round, seller, offer, nonce) {
    const fields = { accuracy: null, data_size: new Float(offer.size), epsilon: new Float(offer.epsilon),
      valuation: new Float(offer.valuation) };
    return digest(`["${round}","${seller}",${canonical(fields)},"${nonce}"]`);
  }

  // ---- what is typed ---------------------------------------------------------------------------------------------

  const typed = (form, name) => form.elements[name].value.trim();

  function number(form, name) {
    const value = Number(typed(form, name));
    if (!typed(form, name) || !Number.isFinite(value)) throw new Error("Write digits, e.g. 0.5.");
    return value;
  }

  // Micro-units of an amount typed in units, exactly.
  function micro(form, name) {
    const found = /^(\d{1,9})(?:\.(\d{1,6}))?$/.exec(typed(form, name));
    if (!found) throw new Error("Write an amount in digits with at most six decimals, e.g. 12.50.");
    return BigInt(found[1]) * 1000000n + BigInt((found[2] || "").padEnd(6, "0"));
  }

  const seconds = (form, name) => BigInt(Math.round(60 * number(form, name)));

  function reason(form) {
    if (!typed(form, "reason")) throw new Error("Say why, in at most 200 characters.");
    return typed(form, "reason");
  }

  // Kind of statement → what is said, from a form and the button that was pressed.
  const SAID = {
    "task.published": (form) => [{
      title: typed(form, "title"), mechanism: typed(form, "mechanism"), budget_micro: micro(form, "budget"),
      rounds: BigInt(Math.trunc(number(form, "rounds"))), epsilon_max: new Float(number(form, "epsilon_max")),
      bid_seconds: seconds(form, "bid_minutes"), delivery_seconds: seconds(form, "delivery_minutes"),
      review_seconds: seconds(form, "review_minutes"), sealing: typed(form, "sealing"),
      buyer_may_close: form.elements.may_close.checked, arbiter_id: typed(form, "arbiter_id") || null, nonce: random(),
    }],
    "round.opened": (form) => [{ number: BigInt(form.dataset.number) }],
    "round.closed": () => [{}],
    "round.aborted": (form) => [{ reason: reason(form) }],
    "delivery.claimed": (form) => [{ update_sha256: typed(form, "update_sha256").toLowerCase(), key_sha256: null }],
    "delivery.judged": (form, button) => form.dataset.sellers
      ? JSON.parse(form.dataset.sellers).map((seller) => ({ seller_id: seller, fault: null }))
      : [{ seller_id: typed(form, "seller_id"), fault: button.value === "accept" ? null : reason(form) }],
    "dispute.opened": (form) => [{ reason: reason(form) }],
    "dispute.ruled": (form, button) => [
      { seller_id: typed(form, "seller_id"), pays: button.value === "pay", reason: reason(form) }],
    "round.progress": (form) => [{ accuracy: new Float(number(form, "accuracy") / 100) }],
    "money.requested": (form) => [{ amount_micro: micro(form, "amount"), nonce: random() }],
  };

  async function statementText(kind, party, about, said) {
    return `privmarket statement v1\n${kind}\n${party}\n${about}\n${await digest(canonical(said))}\n`;
  }

  // ---- keys ------------------------------------------------------------------------------------------------------

  async function readKey(file) {
    const pem = await file.text();
    const body = pem.replace(/-----[A-Z ]+-----/g, "").replace(/\s+/g, "");
    try {
      const raw = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
      return await crypto.subtle.importKey("pkcs8", raw, "Ed25519", false, ["sign"]);
    } catch (problem) {
      throw new Error(`That key could not be used (${problem.name}). It must be the PEM file of an Ed25519 key.`);
    }
  }

  async function chosenKey() {
    const chooser = document.getElementById("pem");
    if (!chooser || !chooser.files.length) {
      if (chooser) chooser.scrollIntoView({ block: "center" });
      throw new Error("Choose your key file first: what this account states is signed.");
    }
    return readKey(chooser.files[0]);
  }

  const signature = async (key, words) => hex(await crypto.subtle.sign("Ed25519", key, utf8(words)));

  // A fresh key, saved as a file; returns its public half.
  async function makeKey(name) {
    const pair = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
    const raw = new Uint8Array(await crypto.subtle.exportKey("pkcs8", pair.privateKey));
    const body = btoa(String.fromCharCode(...raw)).replace(/.{64}(?=.)/g, "$&\n");
    const file = new Blob([`-----BEGIN PRIVATE KEY-----\n${body}\n-----END PRIVATE KEY-----\n`]);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = name;
    link.click();
    return hex(await crypto.subtle.exportKey("raw", pair.publicKey));
  }

  // ---- forms -----------------------------------------------------------------------------------------------------

  window.privmarketSigning = { Float, canonical, floatText, commitment, statementText };
  const party = document.body.dataset.party;

  function fill(form, values) {
    for (const [name, value] of Object.entries(values)) {
      const field = form.elements[name] || form.appendChild(document.createElement("input"));
      field.type = "hidden";
      field.name = name;
      field.value = value;
    }
  }

  async function signBid(form) {
    const offer = { valuation: number(form, "valuation"), epsilon: number(form, "epsilon"),
      size: number(form, "data_size") };
    const key = await chosenKey();
    const nonce = random();
    const { round } = form.dataset;
    const committed = await commitment(round, party, offer, nonce);
    fill(form, { nonce, signature: await signature(key, `privmarket bid v1\n${round}\n${party}\n${committed}\n`) });
  }

  async function signStatements(form, button) {
    const kind = form.dataset.states;
    const { about } = form.dataset;
    const said = SAID[kind](form, button);
    const key = await chosenKey();
    const signatures = [];
    for (const one of said) signatures.push(await signature(key, await statementText(kind, party, about, one)));
    fill(form, { kind, about, said: `[${said.map(canonical).join(",")}]`, signatures: JSON.stringify(signatures) });
    form.action = "/signed";
  }

  async function register(form) {
    if (!form.elements.own_key.checked) return;
    fill(form, { public_key: await makeKey("privmarket-key.pem") });
  }

  async function changeKey(form) {
    const old = form.dataset.old ? await chosenKey() : null;
    const made = await makeKey("privmarket-key.pem");
    fill(form, { public_key: made });
    if (old) fill(form, { signature: await signature(old, `privmarket key v1\n${party}\n${made}\neverything\n`) });
  }

  const WORK = { bid: signBid, register, key: changeKey };

  // One listener for all forms: those of the live part come and go.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const work = form.dataset.states ? signStatements : WORK[form.dataset.signs];
    if (!work || form.dataset.signed === "yes") return;
    event.preventDefault();
    const status = form.querySelector("[role=status]") || document.getElementById("signing");
    try {
      await work(form, event.submitter);
      form.dataset.signed = "yes";
      status.textContent = "Signed.";
      form.submit();
    } catch (problem) {
      status.textContent = problem.message;
    }
  });
})();
