// Fetches the live part of the page again every second; says so when the broker cannot be reached.
(function () {
  "use strict";
  const place = document.querySelector("[data-live]");
  const status = document.querySelector(".live");
  if (!place || !status) return;
  const address = place.dataset.live + (location.search ? location.search + "&" : "?") + "part=live";
  async function refresh() {
    if (document.hidden) return;
    try {
      const reply = await fetch(address, { credentials: "same-origin" });
      if (reply.status === 401) { location.assign("/sign-in"); return; }
      if (!reply.ok) throw new Error(String(reply.status));
      const text = await reply.text();
      if (text !== place.dataset.last) {
        // Keyboard users keep their place: what has the focus is not replaced under them.
        if (!place.contains(document.activeElement)) { place.innerHTML = text; place.dataset.last = text; }
      }
      status.textContent = "Live";
      status.classList.remove("lost");
    } catch (problem) {
      status.textContent = "The broker does not answer; trying again…";
      status.classList.add("lost");
    }
  }
  refresh();
  setInterval(refresh, 1000);
})();
