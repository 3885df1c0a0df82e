// Fetches the live part of the page again every second, shows only the steps that apply now, and says so when the
// broker cannot be reached. Without it the pages work too, as of when they were loaded.
(function () {
  "use strict";
  // A form that acts on whoever is chosen in it.
  for (const choice of document.querySelectorAll("[data-chooses]")) {
    const aim = () => { choice.form.action = choice.form.dataset.to.replace("ID", choice.value); };
    choice.addEventListener("change", aim);
    aim();
  }
  const place = document.querySelector("[data-live]");
  const status = document.querySelector(".live");
  if (!place || !status) return;
  const address = place.dataset.live + (location.search ? location.search + "&" : "?") + "part=live";
  let last = "";
  function show(text) {
    // Keyboard users keep their place: a link that has the focus gets it again, by where it leads.
    const held = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    place.innerHTML = text;
    if (held) {
      const again = place.querySelector(`a[href="${CSS.escape(held)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
    const marker = place.querySelector("[data-can]");
    if (!marker) return;
    const can = marker.dataset.can.split(" ");
    for (const step of document.querySelectorAll("[data-when]")) step.hidden = !can.includes(step.dataset.when);
  }
  async function refresh() {
    if (document.hidden) return;
    try {
      const reply = await fetch(address, { credentials: "same-origin" });
      if (reply.status === 401) { location.assign("/sign-in"); return; }
      if (!reply.ok) throw new Error(String(reply.status));
      const text = await reply.text();
      if (text !== last) { show(text); last = text; }
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
