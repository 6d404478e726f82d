// The parts of CodeMirror that grader/server/static/editor.js uses, as one script. The stream modes
// are a quarter of the size of the grammars, and mark names that begin with two underscores, such as
// __global__.
export { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
export {
  bracketMatching, HighlightStyle, indentOnInput, indentUnit, StreamLanguage, syntaxHighlighting,
} from "@codemirror/language";
export { cpp } from "@codemirror/legacy-modes/mode/clike";
export { python } from "@codemirror/legacy-modes/mode/python";
export { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
export { Compartment, EditorState } from "@codemirror/state";
export { drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
export { tags } from "@lezer/highlight";
