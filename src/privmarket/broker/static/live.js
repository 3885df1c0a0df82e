// Fetches the live part of the page again when the broker says that something happened, shows only the steps that apply now, and says so when the
// broker cannot be reached. Without it the pages work too, as of when they were loaded.
(function () {
  "use strict";
  // Moments in the reader's own time zone; without scripts they stand in UTC.
  const shape = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  function localTimes(inside) {
    for (const one of inside.querySelectorAll("time[datetime]")) {
      const moment = new Date(one.dateTime);
      one.textContent = shape.format(moment);
      one.title = whole.format(moment);
    }
  }
  localTimes(document);
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
    });
  }
  // What a bid would earn and cost, as it is typed.
  const worst = document.querySelector("[data-preview]");
  if (worst) {
    const usual = worst.textContent;
    let pause = 0;
    worst.closest("form").addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(async () => {
        const typed = new URLSearchParams(new FormData(worst.closest("form")));
        const asked = new URLSearchParams({ valuation: typed.get("valuation"), epsilon: typed.get("epsilon") });
        if (!typed.get("valuation") || !typed.get("epsilon")) { worst.textContent = usual; return; }
        const reply = await fetch(worst.dataset.preview + "?" + asked, { credentials: "same-origin" });
        const text = new DOMParser().parseFromString(await reply.text(), "text/html");
        worst.textContent = reply.ok ? text.body.textContent : usual;
      }, 300);
    });
  }
  // What was typed into a form that was refused is there again on the way back.
  const forms = () => document.querySelectorAll("form[method=post]");
  for (const form of forms()) {
    const slot = "form " + form.getAttribute("action");
    form.addEventListener("submit", () => {
      const typed = [...form.elements].filter((e) => e.name && !["hidden", "password", "checkbox"].includes(e.type));
      sessionStorage.setItem(slot, JSON.stringify(typed.map((e) => [e.name, e.value])));
    });
    const kept = sessionStorage.getItem("failed") && sessionStorage.getItem(slot);
    if (kept) {
      for (const [name, value] of JSON.parse(kept)) if (form.elements[name]) form.elements[name].value = value;
      const folded = form.closest("details");
      if (folded) folded.open = true;
    }
  }
  if (document.querySelector("[data-failed]")) sessionStorage.setItem("failed", "yes");
  else if (forms().length > 1) sessionStorage.removeItem("failed");
  const place = document.querySelector("[data-live]");
  const status = document.querySelector(".live");
  if (!place || !status) return;
  const address = place.dataset.live + (location.search ? location.search + "&" : "?") + "part=live";
  let last = "";
  function show(text) {
    // Somebody who is in a form of the live part is not interrupted.
    if (place.contains(document.activeElement) && document.activeElement.closest("form")) return false;
    // Keyboard users keep their place: a link that has the focus gets it again, by where it leads.
    const held = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    place.innerHTML = text;
    localTimes(place);
    if (held) {
      const again = place.querySelector(`a[href="${CSS.escape(held)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
    const marker = place.querySelector("[data-can]");
    if (!marker) return true;
    const can = marker.dataset.can.split(" ");
    for (const step of document.querySelectorAll("[data-when]")) step.hidden = !can.includes(step.dataset.when);
    return true;
  }
  async function refresh() {
    if (document.hidden) return;
    try {
      const reply = await fetch(address, { credentials: "same-origin" });
      if (reply.status === 401) { location.assign("/sign-in"); return; }
      if (!reply.ok) throw new Error(String(reply.status));
      const text = await reply.text();
      if (text !== last && show(text)) last = text;
      status.textContent = "Live";
      status.classList.remove("lost");
    } catch (problem) {
      status.textContent = "The broker does not answer; trying again…";
      status.classList.add("lost");
    }
  }
  refresh();
  // News come as server-sent events; a look every ten seconds keeps "in 5 min" true, and serves where a proxy holds
  // events back. A burst of news is one look.
  let soon = 0;
  const again = () => {
    if (!soon) soon = setTimeout(() => { soon = 0; refresh(); }, 250);
  };
  const news = new EventSource("/news");
  news.onmessage = again;
  news.onerror = again;
  window.addEventListener("pagehide", () => news.close());
  window.addEventListener("pageshow", (shown) => { if (shown.persisted) location.reload(); });
  document.addEventListener("visibilitychange", again);
  setInterval(refresh, 10000);
})();
