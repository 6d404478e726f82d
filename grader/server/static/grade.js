// Everything on the pages works without this script, except the copy buttons and the theme switch.
(() => {
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  // Set before the body is drawn, so that the page does not flash.
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();

  const dark = () =>
    root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;

  const copied = (button) => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };

  document.addEventListener("click", (event) => {
    const theme = event.target.closest("[data-theme-toggle]");
    if (theme) {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not stored */ }
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const text = copy.parentElement.querySelector("code").textContent;
      navigator.clipboard?.writeText(text).then(() => copied(copy), () => {});
    }
  });

  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-needs-script]")) button.hidden = false;
  });

  // A part that refreshes itself does so while the page can be seen. The pauses differ, so that the
  // pages of many readers do not ask at the same moment.
  const refresh = (element) => {
    if (!document.hidden) element.dispatchEvent(new Event("refresh"));
  };
  const keepFresh = (element) => {
    const pause = 1000 * element.dataset.refreshS * (0.8 + 0.4 * Math.random());
    setTimeout(() => { refresh(element); keepFresh(element); }, pause);
  };
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-refresh-s]").forEach(keepFresh);
  });
  document.addEventListener("visibilitychange", () => {
    document.querySelectorAll("[data-refresh-s]").forEach(refresh);
  });

  // An error answer that is not HTML, or no answer, is shown as text in the target.
  const show = (target, text) => {
    const line = document.createElement("p");
    line.className = "note bad";
    line.setAttribute("role", "alert");
    line.textContent = text;
    target.replaceChildren(line);
  };
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if ((detail.xhr.getResponseHeader("content-type") ?? "").startsWith("text/html")) return;
    detail.shouldSwap = false;
    if (detail.target.id !== "progress") return;
    let text = "The server sent an unexpected answer; try again.";
    try { text = JSON.parse(detail.xhr.responseText).error.message; } catch { /* keep the default */ }
    show(detail.target, text);
  });
  document.addEventListener("htmx:sendError", ({ detail }) => {
    if (detail.target.id === "progress") show(detail.target, "The server cannot be reached.");
  });
})();
