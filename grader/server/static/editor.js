// The editor of the submit page. It takes the place of the text area, keeps a draft of each problem
// and language, and hands its text in as a file.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector("form[data-editor]");
  if (!form || !window.codemirror) return;
  const {
    bracketMatching, Compartment, cpp, defaultKeymap, drawSelection, EditorState, EditorView,
    HighlightStyle, highlightSelectionMatches, history, historyKeymap, indentLess, indentMore,
    indentOnInput, indentUnit, keymap, lineNumbers, python, search, searchKeymap, StreamLanguage,
    syntaxHighlighting, tags,
  } = window.codemirror;
  const { problem, language, file, source } = form.elements;
  const status = form.querySelector("[data-editor-status]");
  const say = (text) => { status.textContent = text; };

  // Appearance: the variables of grade.css, each of which has a light and a dark value.
  const theme = EditorView.theme({
    "&": { color: "var(--ink)", backgroundColor: "var(--panel)", fontSize: "0.875rem" },
    "&.cm-focused": { outline: "none" },
    ".cm-scroller": {
      fontFamily: "var(--mono)", lineHeight: "1.55", minHeight: "14rem", maxHeight: "36rem",
    },
    ".cm-content": { caretColor: "var(--ink)" },
    ".cm-cursor": { borderLeftColor: "var(--ink)" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground":
      { background: "var(--rail)" },
    ".cm-gutters": {
      backgroundColor: "var(--sunk)", color: "var(--soft)", borderRight: "1px solid var(--line)",
    },
    ".cm-lineNumbers .cm-gutterElement": { paddingLeft: "0.75rem" },
    "&.cm-focused .cm-matchingBracket, &.cm-focused .cm-nonmatchingBracket": {
      backgroundColor: "transparent", outline: "1px solid var(--soft)",
    },
    "&.cm-focused .cm-nonmatchingBracket": { outlineColor: "var(--bad)" },
    ".cm-selectionMatch": { backgroundColor: "var(--wash)" },
    ".cm-searchMatch": { backgroundColor: "var(--wash)", outline: "1px solid var(--accent)" },
    ".cm-searchMatch-selected": { backgroundColor: "var(--rail)" },
    ".cm-panels": {
      backgroundColor: "var(--sunk)", color: "var(--ink)", borderColor: "var(--line)",
    },
    ".cm-panel.cm-search label": { fontSize: "0.8125rem", whiteSpace: "nowrap" },
    ".cm-textfield, .cm-button": {
      backgroundColor: "var(--panel)", backgroundImage: "none", color: "var(--ink)",
      border: "1px solid var(--soft)", borderRadius: "5px", fontSize: "0.8125rem",
    },
    ".cm-button:active": { backgroundImage: "none", backgroundColor: "var(--rail)" },
    ".cm-panel.cm-search [name=close]": { color: "var(--ink)" },
    ".cm-specialChar": { color: "var(--bad)" },
  });
  const colours = syntaxHighlighting(HighlightStyle.define([
    { tag: [tags.keyword, tags.typeName, tags.operatorKeyword], color: "var(--odd)" },
    { tag: tags.standard(tags.variableName), color: "var(--odd)" },
    { tag: tags.string, color: "var(--good)" },
    { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
    { tag: [tags.number, tags.meta, tags.atom, tags.bool], color: "var(--accent)" },
    { tag: tags.definition(tags.variableName), fontWeight: "640" },
  ]));
  const grammars = { cuda: StreamLanguage.define(cpp), python: StreamLanguage.define(python) };

  // Tab indents after a key or a click. Until then, and after Escape, it moves on to the next field,
  // so that the editor is no trap for someone without a mouse.
  let tabIndents = false;
  const indent = (view) => {
    if (!tabIndents) return false;
    if (view.state.selection.ranges.some((range) => !range.empty)) return indentMore(view);
    view.dispatch(view.state.replaceSelection("    "), { userEvent: "input" });
    return true;
  };
  const tabKeys = keymap.of([
    { key: "Tab", run: indent, shift: (view) => tabIndents && indentLess(view) },
    { key: "Escape", run: () => { tabIndents = false; return false; } },
  ]);

  const grammar = new Compartment();
  const extensions = [
    tabKeys, lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(),
    highlightSelectionMatches(), search({ top: true }), indentUnit.of("    "), theme, colours,
    keymap.of([...searchKeymap, ...historyKeymap, ...defaultKeymap]),
    EditorView.contentAttributes.of({ "aria-label": "Source", tabindex: "0" }),
    EditorView.updateListener.of((update) => {
      if (!update.docChanged) return;
      if (update.transactions.some((one) => one.isUserEvent("input"))) tabIndents = true;
      saveSoon();
    }),
    EditorView.domEventHandlers({
      // Chromium would put inline styles into what it types over a selection, and the content policy
      // would report each.
      beforeinput: (event, view) => {
        const typesOver = event.inputType === "insertText" && event.data !== null &&
          !view.composing && !view.state.selection.main.empty;
        if (!typesOver) return false;
        event.preventDefault();
        const change = view.state.replaceSelection(event.data);
        view.dispatch(change, { userEvent: "input.type", scrollIntoView: true });
        return true;
      },
      pointerdown: () => { tabIndents = true; },
      blur: () => { tabIndents = false; },
      drop: (event) => {
        const [dropped] = event.dataTransfer?.files ?? [];
        if (!dropped) return false;
        event.preventDefault();
        openFile(dropped);
        return true;
      },
    }),
  ];
  const newState = (text) =>
    EditorState.create({ doc: text, extensions: [...extensions, grammar.of(grammarNow())] });
  const grammarNow = () => grammars[language.value] ?? grammars.python;

  // In a shadow root its styles are a constructed sheet, which the content policy allows without an
  // exception for inline styles.
  const host = document.createElement("div");
  host.className = "editor";
  const root = host.attachShadow({ mode: "open" });
  source.after(host);
  source.hidden = true;
  const view = new EditorView({ parent: root, root, state: newState(source.value) });
  form.querySelector("label[for=code]").addEventListener("click", () => view.focus());
  const text = () => view.state.doc.toString();

  // Drafts. What the editor shows at first, a starter or a source that was sent, is `original`.
  const opened = { problem: problem.value, language: language.value, text: source.defaultValue };
  const { user, origin } = form.dataset;
  const isOrigin = () =>
    origin && problem.value === opened.problem && language.value === opened.language;
  const keyNow = () =>
    `draft:${user}:${problem.value}:${isOrigin() ? `#${origin}` : language.value}`;
  let chosen = [problem.value, language.value];
  let key = keyNow();
  let original = opened.text;
  let name = null; // of the file that was dropped
  let sent = null; // the text that was submitted last
  let kept = true; // whether the browser has the draft
  let timer = 0;
  const isEdited = () => text() !== original;
  const save = () => {
    clearTimeout(timer);
    try {
      if (isEdited()) localStorage.setItem(key, text());
      else localStorage.removeItem(key);
      kept = true;
      say(isEdited() ? "The draft is kept in this browser." : "");
    } catch {
      kept = false;
      say("This browser keeps no draft; the text is lost when you leave the page.");
    }
  };
  const saveSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(save, 300);
  };
  const draft = () => {
    try { return localStorage.getItem(key); } catch { return null; }
  };
  const wouldBeLost = () => !kept && isEdited() && text() !== sent;
  const mayReplace = (what) =>
    !isEdited() || window.confirm(`This replaces what you typed by ${what}. Replace it?`);

  const starters = new Map();
  const starter = async () => {
    const address = `/problems/${encodeURIComponent(problem.value)}/starters/${language.value}`;
    if (!starters.has(address)) {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(address);
      starters.set(address, await answer.text());
    }
    return starters.get(address);
  };

  // Show the draft or the starter of the problem and language that are chosen now.
  const show = async () => {
    key = keyNow();
    chosen = [problem.value, language.value];
    name = null;
    const wanted = key;
    let first = opened.text;
    try {
      if (!isOrigin()) first = await starter();
    } catch {
      first = "";
      say("The starter cannot be loaded.");
    }
    if (wanted !== key) return; // another one was chosen meanwhile
    original = first;
    const found = draft();
    view.setState(newState(found ?? original));
    if (found !== null && found !== original) say("This is your draft.");
  };
  const choose = () => {
    save();
    if (wouldBeLost() && !mayReplace("another text")) {
      [problem.value, language.value] = chosen;
      return;
    }
    say("");
    show();
  };
  const replace = (content) =>
    view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: content } });
  const refuse = (why) => {
    save(); // what it says of the draft comes first
    say(why);
  };
  const openFile = async (dropped) => {
    const suffix = dropped.name.toLowerCase().match(/\.(py|cu)$/)?.[1];
    if (!suffix) {
      const ends = file.accept.split(",");
      if (ends.some((end) => dropped.name.toLowerCase().endsWith(end)))
        return refuse("Choose this file below to submit it as it is.");
      return refuse(`A submission is one file, and files end in ${ends.join(" and ")}.`);
    }
    if (dropped.size > 1 << 24) return refuse("The file is too large.");
    let content;
    try {
      content = new TextDecoder("utf-8", { fatal: true }).decode(await dropped.arrayBuffer());
    } catch {
      return refuse("The file is not UTF-8. Choose it below to submit it as it is.");
    }
    const guess = content.includes("triton") ? "triton" : "torch";
    const wanted = suffix === "cu" ? "cuda" : guess;
    if (wanted !== language.value) {
      save();
      if (wouldBeLost() && !mayReplace("the file")) return;
      language.value = wanted;
      await show();
    }
    if (!mayReplace("the file")) return;
    replace(content);
    name = dropped.name;
  };

  problem.addEventListener("change", choose);
  language.addEventListener("change", choose);
  form.querySelector("[data-starter]").addEventListener("click", async () => {
    const content = await starter().catch(() => null);
    if (content === null) return say("The starter cannot be loaded.");
    if (text() !== content && mayReplace("the starter")) replace(content);
  });
  const showFile = () => {
    const isChosen = file.files.length > 0;
    form.querySelector("[data-source]").hidden = isChosen;
    form.querySelector("[data-no-file]").hidden = !isChosen;
  };
  file.addEventListener("change", showFile);
  form.querySelector("[data-no-file]").addEventListener("click", () => {
    file.value = "";
    showFile();
    view.focus();
  });

  // The text is sent as a file: a form would turn its line ends into CRLF.
  form.addEventListener("formdata", ({ formData }) => {
    if (!file.files.length && text().trim()) {
      const suffix = language.value === "cuda" ? ".cu" : ".py";
      formData.set("file", new File([text()], name ?? `submission${suffix}`));
    }
    formData.delete("source");
  });
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.elt === form && detail.successful) sent = text();
  });
  window.addEventListener("beforeunload", (event) => {
    save();
    if (wouldBeLost()) event.preventDefault();
  });

  showFile();
  show();
});
