// Signs bids in the browser. The private key is read from the seller's file for each bid; it is not stored, and it is
// never sent.
(function () {
  "use strict";
  const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const text = (words) => new TextEncoder().encode(words);

  // A number as Python writes a float, because the commitment is a digest of that text: the shortest digits that
  // read back as the same number, with an exponent below 1e-4 and from 1e16 on.
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

  async function commitment(round, seller, offer, nonce) {
    const fields = `{"accuracy":null,"data_size":${floatText(offer.size)},"epsilon":${floatText(offer.epsilon)},` +
      `"valuation":${floatText(offer.valuation)}}`;
    const words = `["${round}","${seller}",${fields},"${nonce}"]`;
    return hex(await crypto.subtle.digest("SHA-256", text(words)));
  }

  async function readKey(file) {
    const pem = await file.text();
    const body = pem.replace(/-----[A-Z ]+-----/g, "").replace(/\s+/g, "");
    const raw = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
    return crypto.subtle.importKey("pkcs8", raw, "Ed25519", false, ["sign"]);
  }

  window.privmarketSigning = { floatText, commitment };
  const form = document.querySelector("form[data-signs=bid]");
  if (!form) return;
  const status = form.querySelector("#signing");
  const chooser = form.querySelector("#pem");
  const say = (words) => { status.textContent = words; };

  form.addEventListener("submit", async (event) => {
    if (form.dataset.signed === "yes") return;
    event.preventDefault();
    try {
      if (!chooser.files.length) { say("Choose your key file first: this account's bids are signed."); return; }
      const key = await readKey(chooser.files[0]);
      const value = (name) => Number(form.elements[name].value);
      const offer = { valuation: value("valuation"), epsilon: value("epsilon"), size: value("data_size") };
      if (!Object.values(offer).every(Number.isFinite)) { say("Write digits, e.g. 0.5."); return; }
      const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
      const { round, seller } = form.dataset;
      const committed = await commitment(round, seller, offer, nonce);
      const words = `privmarket bid v1\n${round}\n${seller}\n${committed}\n`;
      const signature = hex(await crypto.subtle.sign("Ed25519", key, text(words)));
      for (const [name, filled] of [["nonce", nonce], ["signature", signature]]) {
        const field = document.createElement("input");
        field.type = "hidden";
        field.name = name;
        field.value = filled;
        form.append(field);
      }
      form.dataset.signed = "yes";
      say("Signed.");
      form.requestSubmit();
    } catch (problem) {
      say(`That key could not be used (${problem.name}). It must be the PEM file of privmarket seller init.`);
    }
  });
})();
