// The little that the pages do by themselves. Without it everything but the copy buttons works.
(() => {
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  // Before the body is drawn, so that nothing flashes.
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
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* then not stored */ }
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

  // Answers that are no pages, and none at all, become words where the page was to be.
  const say = (target, words) => {
    const line = document.createElement("p");
    line.className = "note bad";
    line.setAttribute("role", "alert");
    line.textContent = words;
    target.replaceChildren(line);
  };
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if ((detail.xhr.getResponseHeader("content-type") ?? "").startsWith("text/html")) return;
    detail.shouldSwap = false;
    if (detail.target.id !== "progress") return;
    let words = "The server did not answer as it should; try again.";
    try { words = JSON.parse(detail.xhr.responseText).error.message; } catch { /* then these */ }
    say(detail.target, words);
  });
  document.addEventListener("htmx:sendError", ({ detail }) => {
    if (detail.target.id === "progress") say(detail.target, "The server cannot be reached.");
  });
})();
