// Checks the broker's log in the reader's browser: the newest head is signed by the key that this browser saw first, and
// the log still begins with the head that it saw last. Both are kept here, where the broker cannot change them.
(function () {
  "use strict";
  const line = document.querySelector("[data-log]");
  if (!line || !window.crypto || !crypto.subtle) return;
  const bytes = (hex) => Uint8Array.from(hex.match(/../g) || [], (pair) => parseInt(pair, 16));
  const hex = (raw) => [...new Uint8Array(raw)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const utf8 = (words) => new TextEncoder().encode(words);
  const node = async (left, right) =>
    hex(await crypto.subtle.digest("SHA-256", new Uint8Array([1, ...bytes(left), ...bytes(right)])));

  async function isSigned(key, words, signature) {
    const known = await crypto.subtle.importKey("raw", bytes(key), "Ed25519", false, ["verify"]);
    return crypto.subtle.verify("Ed25519", known, bytes(signature), utf8(words));
  }

  // RFC 9162, 2.1.4.2: whether the log of `size` entries under `root` begins with that of `oldSize` under `oldRoot`.
  async function extendsHead(oldSize, oldRoot, size, root, proof) {
    if (oldSize === size) return oldRoot === root;
    const path = [...proof];
    let first = oldSize - 1;
    let last = size - 1;
    const half = () => { first = Math.floor(first / 2); last = Math.floor(last / 2); };
    while (first % 2) half();
    if (first === 0) path.unshift(oldRoot);
    if (!path.length) return false;
    let [one, other] = [path[0], path[0]];
    for (const hash of path.slice(1)) {
      if (last === 0) return false;
      if (first % 2 || first === last) {
        [one, other] = [await node(hash, one), await node(hash, other)];
        while (first % 2 === 0 && first !== 0) half();
      } else other = await node(other, hash);
      half();
    }
    return one === oldRoot && other === root && last === 0;
  }

  async function check() {
    const head = await (await fetch("/v1/log/head")).json();
    if (!head.signature) return "";
    const place = `privmarket log ${head.log_id}`;
    const seen = JSON.parse(localStorage.getItem(place) || "null");
    let key = seen ? seen.key : head.public_key;
    for (const step of head.keys) {
      if (step.old !== key || key === head.public_key) continue;
      const words = `privmarket log key v1\n${head.log_id}\n${step.old}\n${step.new}\n`;
      if (await isSigned(step.old, words, step.signature)) key = step.new;
    }
    const root = btoa(String.fromCharCode(...bytes(head.root)));
    const text = `privmarket/${head.log_id}\n${head.size}\n${root}\nat_ms ${head.at_ms}\n`;
    if (key !== head.public_key || !(await isSigned(key, text, head.signature))) {
      return "NOT verified: its head is not signed by the key that this browser knows";
    }
    if (seen) {
      const asked = `/v1/log/consistency?old=${seen.size}&new=${head.size}`;
      const reply = head.size > seen.size ? await (await fetch(asked)).json() : { path: [] };
      if (!(await extendsHead(seen.size, seen.root, head.size, head.root, reply.path || []))) {
        return `NOT verified: it does not begin with the ${seen.size} entries that this browser saw`;
      }
    }
    localStorage.setItem(place, JSON.stringify({ key, size: head.size, root: head.root }));
    return "verified by this browser";
  }

  check().then((found) => {
    if (!found) return;
    line.textContent = line.textContent.replace(/^log head/, `Log ${found}, head`);
    line.classList.toggle("lost", found.startsWith("NOT"));
  }).catch(() => {});  // no Ed25519 here, or the broker is away: the line stays as the broker wrote it
})();
