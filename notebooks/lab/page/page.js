/* The completions page: one state, one render, no library. Of a training run, or of an evaluation (a payload with `models`):
   there a model stands where a step does. Everything that a model or a person wrote reaches the page
   as text nodes only; the page's policy (CSP with Trusted Types) would stop anything else. */
(async function () {
  "use strict";

  const PAGE = 100; // rows of a table in the document at once
  const SHOWN = 20000; // characters of a text shown before "show all"
  const MOST_WORDS = 40000; // of both texts, beyond what they share at their ends
  const MOST_EDITS = 2500; // words apart: time grows with words × edits, memory with the square of the edits
  const MOST_TAGS = 2000; // of a kind in one text: a megabyte of tags must not become as many elements
  const VIEWS = [["prompts", "Prompts"], ["compare", "Compare"], ["completions", "Completions"],
    ["suspects", "Suspects"], ["log", "Reward log"]];
  const THEMES = ["auto", "light", "dark"];
  const SVG = "http://www.w3.org/2000/svg";

  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;

  // ------------------------------------------------------------------ elements and text

  /** An element; strings among the children become text nodes, functions among the properties listeners. */
  function make(tag, properties = {}, ...children) {
    const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  function button(label, title, act, more = {}) {
    return make("button", { type: "button", title, click: act, ...more }, label);
  }

  // Characters that are drawn as nothing, or that change how others are drawn; newline and tab are left alone.
  // With the u flag the range of surrogates matches only those that stand alone.
  const UNSEEN = "[\\0-\\x08\\x0B-\\x1F\\x7F-\\x9F\\xAD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180B-\\u180F\\u200B-\\u200F" +
    "\\u2028-\\u202E\\u2060-\\u206F\\u3164\\uFEFF\\uFFA0\\uFFF0-\\uFFFB\\uD800-\\uDFFF\\u{E0000}-\\u{E0FFF}]";
  const UNSEEN_RUN = new RegExp(`(${UNSEEN})\\1*`, "gu");
  const UNSEEN_OR_SPACE = new RegExp(`${UNSEEN}|[\\n\\t]`, "gu");
  const NAMES = { 0: "NUL", 9: "tab", 10: "line feed", 13: "carriage return", 27: "escape", 127: "delete", 0xad: "soft hyphen",
    0x200b: "zero-width space", 0x200c: "zero-width non-joiner", 0x200d: "zero-width joiner", 0x200e: "left-to-right mark",
    0x200f: "right-to-left mark", 0x2028: "line separator", 0x2029: "paragraph separator", 0x202a: "left-to-right embedding",
    0x202b: "right-to-left embedding", 0x202c: "pop directional formatting", 0x202d: "left-to-right override",
    0x202e: "right-to-left override", 0x2060: "word joiner", 0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate",
    0x2068: "first strong isolate", 0x2069: "pop directional isolate", 0xfeff: "byte order mark" };

  function codeName(code) {
    const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    const half = code >= 0xd800 && code <= 0xdfff;
    const what = NAMES[code] || (half ? "half of a surrogate pair" : "control or invisible character");
    return { hex, what };
  }

  const SHORT = ("NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI " +
    "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US").split(" ");

  /** The old control characters by their abbreviation (many fonts lack Unicode's pictures of them), the rest by its number. */
  function symbol(code) {
    return SHORT[code] ?? (code === 127 ? "DEL" : codeName(code).hex);
  }

  /** A text cut to `most` code units, never through a surrogate pair. */
  function cut(text, most, from = 0) {
    const low = (at) => at > 0 && at < text.length && (text.charCodeAt(at) & 0xfc00) === 0xdc00;
    const start = low(from) ? from + 1 : from;
    let end = Math.min(text.length, start + most);
    if (low(end) && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end -= 1;
    return text.slice(start, end);
  }

  /** One line of text in which nothing is invisible: for cells, names and titles. */
  function visible(value, most = 240) {
    const text = String(value);
    const line = cut(text, most).replace(UNSEEN_OR_SPACE, (found) => {
      const code = found.codePointAt(0);
      return code === 10 ? "↵ " : code === 9 ? " " : `‹${symbol(code)}›`;
    });
    return text.length > most ? `${line}…` : line;
  }

  function plural(count, one, many = `${one}s`) {
    return `${whole(count)} ${count === 1 ? one : many}`;
  }

  const grouped = [0, 1, 2, 3].map((digits) =>
    new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

  function whole(count) {
    return grouped[0].format(count);
  }

  /** The decimals (0 to 3) that a column of numbers needs, so that its points stand under each other; -1: too small for that. */
  function decimals(values) {
    let digits = 0, most = 0;
    for (const value of values) {
      if (typeof value !== "number") continue;
      most = Math.max(most, Math.abs(value));
      while (digits < 3 && Math.abs(value * 10 ** digits - Math.round(value * 10 ** digits)) > 1e-9) digits += 1;
    }
    return most > 0 && most < 0.01 ? -1 : most >= 10000 && digits ? 1 : digits;
  }

  function number(value, digits = 3) {
    if (value === null || value === undefined) return "–";
    const text = digits < 0 ? (value === 0 ? "0" : value.toExponential(2)) : grouped[digits].format(value);
    return text.replace("-", "−");
  }

  /** For reduce: the least and the greatest of a list, whose nulls do not count. */
  function extremes([low, high], value) {
    return value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)];
  }

  function signed(value, digits = 3) {
    return value > 0 ? `+${number(value, digits)}` : number(value, digits);
  }

  // ------------------------------------------------------------------ opening the payload

  async function unpack() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser is too old to unpack the data: Chrome or Edge 80, Firefox 113, Safari 16.4 or newer does it");
    }
    const bytes = atob($("payload").textContent);
    const packed = new Uint8Array(bytes.length);
    for (let at = 0; at < packed.length; at++) packed[at] = bytes.charCodeAt(at); // Uint8Array.from takes ten times as long
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const found = JSON.parse(text);
    if (!found || found.version !== 1) throw new Error("it was made by another version of this project; make it again");
    return found;
  }

  function fail(error) {
    const text = String((error && error.message) || error);
    $("app").hidden = true;
    $("message").hidden = false;
    $("message").setAttribute("role", "alert");
    $("message").textContent = `The completions in this file could not be shown: ${text}. If the file was copied or sent, ` +
      "it may be damaged: make it again with the notebook that wrote it.";
    root.dataset.failed = "true";
  }

  let data;
  try {
    $("message").textContent = "Opening the completions…";
    $("message").hidden = false;
    data = await unpack();
  } catch (error) {
    fail(error);
    return;
  }

  const prompts = data.prompts, completions = data.completions;
  const MODELS = data.models ?? null; // names, by step: of an evaluation only
  const RUN = MODELS ? "evaluation" : "run", STEP = MODELS ? "model" : "step";
  const views = MODELS ? VIEWS.filter(([view]) => view !== "log") : VIEWS;
  const CHANGE = data.change?.column; // the prompts' column that says what became of them
  const SET = data.data_columns.find((name) => /^set\b/.test(name) && // training or held out, where there are both
    prompts.data[name]?.every((value) => value === "training" || value === "held out"));
  const total = completions.text.length;
  const everyCompletion = Array.from({ length: total }, (_, i) => i);
  const ofPrompt = prompts.text.map(() => []); // completions of each prompt, by step and place as the payload has them
  for (const i of everyCompletion) ofPrompt[completions.prompt[i]].push(i);
  // what "best" means: the total, and where an evaluation has none, being right
  const worth = MODELS && completions.total.every((value) => value === null)
    ? completions.right.map((value) => (value === null ? null : Number(value))) : completions.total;
  const lowered = { prompts: [], completions: [] }; // lower-case texts for the search, made when first needed

  // ------------------------------------------------------------------ state, and its form in the address

  const state = { view: "prompts", prompt: null, step: null, place: null, group: null, right: null, diff: true,
    scope: null, judged: "", model: "", rule: "", opened: new Set(), whole: new Set(), notices: [] };
  const tables = {}; // view -> its table, see table()

  /** The state that an address carries: the view, what it shows, and the search, order and page of its table. */
  function encode() {
    const out = new URLSearchParams({ view: state.view });
    const put = (name, value) => {
      if (value !== null && value !== "") out.set(name, value);
    };
    if (state.view === "compare") {
      for (const name of ["prompt", "step", "place", "group"]) put(...inAddress(name, state[name]));
      if (state.right !== null) put("right", state.right);
      if (!state.diff) put("diff", "off");
    }
    if (state.view === "completions") {
      put("prompt", state.scope);
      put("judged", state.judged);
      put("model", state.model);
    }
    if (state.view === "suspects") put("rule", state.rule);
    const shown = tables[state.view];
    if (shown) {
      put("q", shown.query);
      if (shown.sort) put("sort", (shown.sort.down ? "-" : "") + shown.sort.key);
      for (const [key, [low, high]] of shown.ranges) out.append("range", `${low ?? ""}..${high ?? ""}:${key}`);
      if (shown.page) put("page", shown.page + 1);
    }
    return `#${out}`;
  }

  /** Takes the state out of an address; what makes no sense is said and left out. */
  function decode(hash) {
    const from = new URLSearchParams(hash.replace(/^#/, ""));
    const int = (name) => {
      const text = from.get(name);
      if (text === null || text === "") return null;
      if (/^\d{1,9}$/.test(text)) return Number(text);
      state.notices.push(`The address asks for ${name} “${visible(text, 40)}”, which is no number.`);
      return null;
    };
    const view = from.get("view") ?? "prompts";
    const known = views.some(([name]) => name === view);
    if (!known) state.notices.push(`The address asks for a view “${visible(view, 40)}”, which there is not.`);
    state.view = known ? view : "prompts";
    if (state.view === "compare") {
      const place = from.get("place"), named = place === "worst" || (MODELS && place === "best");
      Object.assign(state, { prompt: int("prompt"), step: MODELS ? modelIn(from) : int("step"), group: int("group"),
        right: from.get("right"), diff: from.get("diff") !== "off", place: named ? place : int("place") });
    }
    if (state.view === "completions") {
      state.scope = from.get("prompt") === "all" ? null : int("prompt");
      state.judged = ["right", "wrong", "unknown"].includes(from.get("judged")) ? from.get("judged") : "";
      state.model = MODELS && modelIn(from) !== null ? from.get("model") : "";
    }
    if (state.view === "suspects") state.rule = from.get("rule") ?? "";
    if (tables[state.view]) decodeTable(tables[state.view], from, int);
    settle();
  }

  /** The number of the model that an address names, null without one. */
  function modelIn(from) {
    const name = from.get("model"), at = MODELS.indexOf(name);
    if (at >= 0 || name === null || name === "") return at >= 0 ? at : null;
    state.notices.push(`The address asks for a model “${visible(name, 40)}”, which there is not.`);
    return null;
  }

  /** A part of the state as an address has it: a model by its name. */
  function inAddress(name, value) {
    return MODELS && name === "step" ? ["model", MODELS[value] ?? null] : [name, value];
  }

  function decodeTable(shown, from, int) {
    const sort = from.get("sort") ?? "", key = sort.replace(/^-/, ""), before = tableKey(shown);
    shown.query = from.get("q") ?? "";
    shown.sort = shown.column(key) ? { key, down: sort.startsWith("-") } : null;
    shown.ranges.clear();
    for (const range of from.getAll("range")) {
      const [, low, high, name] = /^(.*?)\.\.(.*?):(.*)$/s.exec(range) ?? [];
      if (shown.column(name)?.kind === "number") shown.ranges.set(name, [numberOr(low), numberOr(high)]);
    }
    shown.page = Math.max(0, (int("page") ?? 1) - 1);
    if (tableKey(shown) !== before) shown.cursor = 0;
  }

  function tableKey(shown) {
    return JSON.stringify([shown.query, shown.sort, [...shown.ranges], shown.page]);
  }

  function numberOr(text) {
    return text === undefined || text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text);
  }

  function nearest(values, wanted) {
    return values.reduce((best, value) => (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best), values[0]);
  }

  /** Puts the nearest in the place of a prompt, step or place that is not in this page, and says so. */
  function settle() {
    const count = prompts.text.length;
    const said = (what, wanted, shown) => {
      state.notices.push(`${what} ${wanted} is not in this page; the nearest is shown: ${shown}.`);
    };
    for (const name of ["prompt", "scope"]) {
      if (state[name] === null || count === 0 || state[name] < count) continue;
      said("Prompt", state[name], count - 1);
      state[name] = count - 1;
    }
    if (state.view !== "compare" || count === 0) return;
    state.prompt ??= Math.max(0, ofPrompt.findIndex((mine) => mine.length > 0));
    const mine = ofPrompt[state.prompt], steps = stepsOf(mine);
    if (!mine.length) return;
    if (state.step !== null && !steps.includes(state.step)) {
      const step = nearest(steps, state.step);
      const what = MODELS ? `An answer of ${stepName(state.step)} to prompt` : `Step ${state.step} of prompt`;
      said(what, state.prompt, stepName(step));
      state.step = step;
    }
    if (typeof state.place === "number") settlePlace(mine, said);
    if (state.right !== null && find(mine, state.right) === undefined) {
      state.notices.push(`The completion “${visible(state.right, 40)}” on the right is not in this page; ` +
        `${usualRight()} is shown.`);
      state.right = null;
    }
  }

  function settlePlace(mine, said) {
    state.step ??= completions.step[mine[0]];
    const there = mine.filter((i) => completions.step[i] === state.step);
    const group = there.filter((i) => state.group === null || completions.group[i] === state.group);
    const places = (group.length ? group : there).map((i) => completions.place[i]);
    if (!group.length) state.group = null;
    if (places.includes(state.place)) return;
    if (MODELS) said(`${placeName(state.place)} of`, stepName(state.step), placeName(nearest(places, state.place)));
    else said(`Place ${state.place} of step`, state.step, `place ${nearest(places, state.place)}`);
    state.place = nearest(places, state.place);
  }

  let writing = 0; // the timer of a change of the address that is yet to be written

  function flushHash() {
    clearTimeout(writing);
    writeNow("replaceState");
  }

  /** Writes the state into the address; where a frame forbids that, the page works without it. */
  function writeNow(how) {
    try {
      // not "#…" alone: in a frame made from text (srcdoc) that would be an address of the page around it
      if (encode() !== location.hash) history[how](null, "", location.href.replace(/#.*$/s, "") + encode());
    } catch (error) {
      root.dataset.address = "fixed";
    }
  }

  function writeHash(push) {
    clearTimeout(writing);
    if (push) writeNow("pushState");
    // browsers refuse more than some hundred changes a minute, and a slider makes them fast
    else writing = setTimeout(() => writeNow("replaceState"), 150);
  }

  function onAddress() {
    clearTimeout(writing);
    if (location.hash === encode()) return; // our own doing
    state.notices = [];
    decode(location.hash);
    render();
  }

  /** Changes the state and shows it; `push`: as a new entry of the history, for the back button. */
  function go(change, push = false) {
    if (push) flushHash(); // the entry that we leave keeps its last search
    state.notices = [];
    Object.assign(state, change);
    settle();
    render();
    writeHash(push);
  }

  function show(view) {
    if (view === "completions" && state.view === "compare") state.scope = state.prompt;
    go({ view }, view !== state.view);
  }

  // ------------------------------------------------------------------ completions: which, best, where

  function stepName(step) {
    return MODELS ? visible(MODELS[step], 60) : `step ${whole(step)}`;
  }

  /** "greedy" or "sampled 2" in an evaluation. */
  function placeName(place) {
    return MODELS ? visible(data.places[place - 1] ?? `answer ${place}`, 60) : `place ${place}`;
  }

  function usualRight() {
    return MODELS ? `the first answer of ${stepName(MODELS.length - 1)}` : "the best of the latest step";
  }

  /** What Compare shows of a step unasked: its best, and of a model the first, which is the greedy answer. */
  function usual(list) {
    return MODELS ? list[0] : best(list);
  }

  function stepsOf(mine) {
    return [...new Set(mine.map((i) => completions.step[i]))];
  }

  /** The completion with the highest (`sign` -1: lowest) total; of equals the shortest. */
  function best(list, sign = 1) {
    const score = (i) => (worth[i] === null ? -Infinity : sign * worth[i]);
    const length = (i) => completions.text[i].length + completions.cut[i];
    const better = (i, top) => score(i) > score(top) || (score(i) === score(top) && length(i) < length(top));
    return list.reduce((top, i) => (better(i, top) ? i : top), list[0]);
  }

  /** Step and place, with the group where one step has several of this prompt: "40.3" or "40.3.1". */
  function address(i) {
    const same = (j) => j !== i && completions.step[j] === completions.step[i] && completions.place[j] === completions.place[i];
    const group = ofPrompt[completions.prompt[i]].some(same) ? completions.group[i] : null;
    return { step: completions.step[i], place: completions.place[i], group };
  }

  function addressText(i) {
    const { step, place, group } = address(i);
    return [MODELS ? MODELS[step] : step, place, ...(group === null ? [] : [group])].join(".");
  }

  function find(mine, text) {
    if (MODELS) return mine.find((i) => addressText(i) === text);
    const [step, place, group] = text.split(".").map(Number);
    return mine.find((i) => completions.step[i] === step && completions.place[i] === place &&
      (group === undefined || completions.group[i] === group));
  }

  /** What Compare shows: { mine, steps, there (the left's step), left, right }; left and right undefined where there is none. */
  function compared() {
    const mine = ofPrompt[state.prompt] ?? [], steps = stepsOf(mine);
    if (!mine.length) return { mine, steps, there: [] };
    const at = (step) => mine.filter((i) => completions.step[i] === step);
    const right = (state.right !== null ? find(mine, state.right) : undefined) ?? usual(at(steps[steps.length - 1]));
    const there = at(state.step ?? steps[0]);
    const inGroup = (i) => state.group === null || completions.group[i] === state.group;
    const placed = there.find((i) => completions.place[i] === state.place && inGroup(i));
    let left = state.place === "worst" ? best(there, -1) : state.place === "best" ? best(there) : placed ?? usual(there);
    // with nothing chosen and a single step, its best is on the right already
    if (left === right && state.place === null && state.step === null) left = best(there.filter((i) => i !== right), -1) ?? left;
    return { mine, steps, there, left, right };
  }

  function rulesOf(i) {
    const ids = data.suspects.sets[completions.suspect[i]] ?? [];
    return ids.map((id) => data.suspects.rules.find((rule) => rule.id === id) ?? { id, title: id, said: "" });
  }

  function why(i, id) {
    return data.suspects.more?.[i]?.[id] ?? "";
  }

  // ------------------------------------------------------------------ word by word

  // A token is a run of white space, a tag, one character of a script that writes without spaces, a number, a word or one sign.
  const TAGS = data.marks.flatMap((mark) => [mark.open, mark.close]).filter((tag) => tag.trim());
  const TOKEN = new RegExp(["\\s+", ...TAGS.map(literally), "</?[A-Za-z][\\w-]*>",
    "[\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}]",
    "\\p{N}+(?:[.,]\\p{N}+)+", "[\\p{L}\\p{M}\\p{N}_]+", "."].join("|"), "gsu");

  /** A regular expression of exactly this text. */
  function literally(text) {
    return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  }

  function tokens(text, numbers) {
    const starts = [], ids = [];
    for (const match of text.matchAll(TOKEN)) {
      if (!numbers.has(match[0])) numbers.set(match[0], numbers.size);
      starts.push(match.index);
      ids.push(numbers.get(match[0]));
    }
    return { starts: [...starts, text.length], ids };
  }

  /** Where two texts differ: { left: [[start, end]…], right, words: [only left, only right] }, or null beyond the caps. */
  function difference(a, b) {
    const numbers = new Map();
    const left = tokens(a, numbers), right = tokens(b, numbers);
    let start = 0, ends = [left.ids.length, right.ids.length];
    while (start < ends[0] && start < ends[1] && left.ids[start] === right.ids[start]) start += 1;
    while (ends[0] > start && ends[1] > start && left.ids[ends[0] - 1] === right.ids[ends[1] - 1]) {
      ends = [ends[0] - 1, ends[1] - 1];
    }
    const inner = [left.ids.slice(start, ends[0]), right.ids.slice(start, ends[1])];
    const pairs = inner[0].length + inner[1].length > MOST_WORDS ? null : common(...inner);
    if (pairs === null) return null;
    const blank = new Set([...numbers].filter(([word]) => /^\s*$/.test(word)).map(([, id]) => id));
    const changed = changes(pairs, inner, blank);
    const count = (flags, ids) => flags.reduce((sum, flag, at) => sum + (flag && !blank.has(ids[at]) ? 1 : 0), 0);
    return { left: ranges(changed[0], left.starts, start), right: ranges(changed[1], right.starts, start),
      words: [count(changed[0], inner[0]), count(changed[1], inner[1])] };
  }

  /** Myers' shortest edit script: the index pairs of a longest common subsequence, or null beyond MOST_EDITS. */
  function common(a, b) {
    const most = Math.min(a.length + b.length, MOST_EDITS), middle = most + 1;
    const far = new Int32Array(2 * most + 3), trace = [];
    for (let d = 0; d <= most; d += 1) {
      for (let k = -d; k <= d; k += 2) {
        const [less, more] = [far[middle + k - 1], far[middle + k + 1]];
        let x = k === -d || (k !== d && less < more) ? more : less + 1;
        while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
        far[middle + k] = x;
        if (x >= a.length && x - k >= b.length) return walkBack(trace, x, x - k);
      }
      trace.push(far.slice(middle - d, middle + d + 1));
    }
    return null;
  }

  function walkBack(trace, x, y) {
    const pairs = [];
    for (let d = trace.length; d > 0; d -= 1) {
      const far = (k) => trace[d - 1][k + d - 1], k = x - y;
      const down = k === -d || (k !== d && far(k - 1) < far(k + 1));
      const fromX = far(down ? k + 1 : k - 1), fromY = fromX - (down ? k + 1 : k - 1);
      while (x > fromX + (down ? 0 : 1) && y > fromY + (down ? 1 : 0)) pairs.push([--x, --y]);
      [x, y] = [fromX, fromY];
    }
    while (x > 0 && y > 0) pairs.push([--x, --y]);
    return pairs.reverse();
  }

  /** Flags of the changed tokens on both sides; white space alone between two changes is changed too: no islands. */
  function changes(pairs, [a, b], blank) {
    const flags = [new Uint8Array(a.length).fill(1), new Uint8Array(b.length).fill(1)];
    pairs.forEach(([x, y], at) => {
      const before = at === 0 ? [-1, -1] : pairs[at - 1], after = pairs[at + 1] ?? [a.length, b.length];
      const island = x - before[0] + y - before[1] > 2 && after[0] - x + after[1] - y > 2;
      if (!(island && blank.has(a[x]))) flags[0][x] = flags[1][y] = 0;
    });
    return flags;
  }

  function ranges(flags, starts, from) {
    const out = [];
    flags.forEach((flag, at) => {
      if (!flag) return;
      const [start, end] = [starts[from + at], starts[from + at + 1]];
      if (out.length && out[out.length - 1][1] === start) out[out.length - 1][1] = end;
      else out.push([start, end]);
    });
    return out;
  }

  // ------------------------------------------------------------------ a text with all its marks

  /** The tags of one mark in a text, found literally: { layers, problems (in words) }. */
  function findMark(text, mark, prompt, wasCut) {
    const layers = [], problems = [], tags = occurrences(text, mark);
    // many templates end the prompt with the opening tag
    let open = prompt.trimEnd().endsWith(mark.open) ? 0 : -1;
    for (const { at, end, opens } of tags) {
      const odd = opens ? open >= 0 : open < 0;
      if (odd && !opens && mark.close.length === 1) continue; // a brace or a line break closes many things
      layers.push({ start: at, end, name: odd ? "tag odd" : "tag" });
      if (odd) problems.push(opens ? `${mark.open} is opened twice` : `${mark.close} closes nothing`);
      if (!opens && open >= 0) layers.push({ start: open, end: at, name: mark.kind });
      if (!odd) open = opens ? end : -1;
    }
    if (open >= 0) layers.push({ start: open, end: text.length, name: mark.kind });
    if (open >= 0 && mark.close.trim()) { // the end of the text ends a line as well
      problems.push(wasCut ? `${mark.open} is not closed before the text was cut` : `${mark.open} is never closed`);
    }
    if (tags.length >= MOST_TAGS) problems.push(`only the first ${whole(MOST_TAGS)} tags ${mark.open} are marked`);
    return { layers, problems: [...new Set(problems)] };
  }

  function occurrences(text, mark) {
    const found = [];
    for (const [tag, opens] of [[mark.open, true], [mark.close, false]]) {
      let at = tag ? text.indexOf(tag) : -1;
      while (at >= 0 && found.length < 2 * MOST_TAGS) {
        found.push({ at, end: at + tag.length, opens });
        at = text.indexOf(tag, at + tag.length);
      }
    }
    return found.sort((one, other) => one.at - other.at).slice(0, MOST_TAGS);
  }

  /** Cuts a text at every boundary of its layers: [{ start, end, names: [layer names] }…], in one pass. */
  function pieces(length, layers) {
    const marks = [];
    for (const layer of layers) {
      const start = Math.max(0, layer.start), end = Math.min(length, layer.end);
      if (start < end) marks.push([start, 1, layer], [end, 0, layer]);
    }
    marks.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    const out = [], active = new Set();
    let at = 0;
    for (const [where, starts, layer] of [...marks, [length, 0, null]]) {
      if (where > at) out.push({ start: at, end: where, names: [...active].map((one) => one.name) });
      at = where;
      if (starts) active.add(layer);
      else active.delete(layer);
    }
    return out;
  }

  const ELEMENTS = [["removed", "del"], ["added", "ins"], ["found", "mark"]];

  /** A text as nodes: tags, reasoning, answer, differences and invisible characters marked, all at once. */
  function marked(text, layers) {
    const unseen = Array.from(text.matchAll(UNSEEN_RUN),
      ({ index, 0: run }) => ({ start: index, end: index + run.length, name: "unseen" }));
    const out = document.createDocumentFragment();
    for (const { start, end, names } of pieces(text.length, [...layers, ...unseen])) {
      const part = text.slice(start, end);
      const [, tag] = ELEMENTS.find(([name]) => names.includes(name)) ?? [null, "span"];
      if (!names.length) out.append(part);
      else if (names.includes("unseen")) out.append(badge(part, tag, names));
      else out.append(make(tag, { class: names.join(" ") }, part));
    }
    return out;
  }

  function badge(part, tag, names) {
    const code = part.codePointAt(0), count = [...part].length, { hex, what } = codeName(code);
    const shown = symbol(code) + (count > 1 ? `×${whole(count)}` : "");
    return make(tag, { class: names.join(" "), title: `${hex}, ${what}${count > 1 ? `, ${whole(count)} times` : ""}` }, shown);
  }

  /** Fills a box with a text; one that is very long is cut, with a button that shows all of it. */
  function fillText(box, text, layers, key, left = 0) {
    const long = text.length > SHOWN && !state.whole.has(key);
    const shown = long ? cut(text, SHOWN) : text;
    box.replaceChildren(marked(shown, layers));
    if (long) {
      const more = () => {
        state.whole.add(key);
        fillText(box, text, layers, key, left);
      };
      box.append(make("span", { class: "more" }, `… ${plural(text.length - shown.length, "more character")} `,
        button("Show all", "Show the whole text", more)));
    }
    if (left) box.append(make("span", { class: "more" }, `… ${plural(left, "more character")} were not kept in this file`));
    if (!text && !left) box.append(make("span", { class: "more" }, "(empty)"));
  }

  // ------------------------------------------------------------------ columns

  /**
   * A column of a table: { key, label, kind: number | text | long | state, value(row) }, and perhaps hint, bar [low, high],
   * link(row), values (all of them), searched (by a search without a column's name), lower(row) (a prepared lower-case
   * text), line(row) (instead of its start), width (characters), spark (values of a line) and hidden (search and export only).
   */
  function column(key, label, kind, value, more = {}) {
    return { key, label: visible(label, 60), kind, value, ...more };
  }

  /** A column over a list of scalars: of numbers, or of text where anything else is among them. */
  function scalars(key, label, values, at = (row) => row, more = {}) {
    const kind = values.some((value) => value !== null && typeof value !== "number") ? "text" : "number";
    const hidden = values.length > 0 && values.every((value) => value === null); // as tokens are in a run of another trainer
    return column(key, label, kind, (row) => values[at(row)] ?? null, { values, hidden, ...more });
  }

  function lowerText(kind, texts) {
    return (row) => (lowered[kind][row] ??= texts[row].toLowerCase());
  }

  /** How many characters all prompts begin with (a system message, mostly), up to the end of a line. */
  function sharedStart() {
    const [first = "", ...others] = prompts.text.filter(Boolean);
    let end = others.length ? first.length : 0;
    for (const text of others) {
      let at = 0;
      while (at < end && text[at] === first[at]) at += 1;
      end = at;
    }
    return first.lastIndexOf("\n", end - 1) + 1;
  }

  const shared = sharedStart();

  /** A prompt on one line, without what all prompts begin with. */
  function promptPreview(p) {
    if (!prompts.text[p] && !ofPrompt[p].length) return "(not in this page)";
    return (shared ? "… " : "") + visible(cut(prompts.text[p], 400, shared));
  }

  const TONES = { regression: "wrong", wrong: "wrong", gain: "right", right: "right" };

  function dataColumn(name) {
    return scalars(`data/${name}`, name, prompts.data[name] ?? [], undefined, { searched: true,
      hint: hintOf(name, "a column of the data set"), tone: name === CHANGE ? (value) => TONES[value] : undefined });
  }

  function hintOf(name, usually) {
    const own = data.hints && Object.hasOwn(data.hints, name) ? data.hints[name] : null;
    return own === null ? `${visible(name)}: ${usually}` : visible(own);
  }

  function promptColumns() {
    return [
      column("prompt", "prompt", "number", (p) => p, { hint: "The prompt's number in this page", link: promptLink }),
      ...data.data_columns.filter((name) => name === CHANGE).map(dataColumn),
      column("text", "text", "long", (p) => prompts.text[p], { searched: true, lower: lowerText("prompts", prompts.text),
        line: promptPreview }),
      scalars("tokens", "tokens", prompts.tokens, undefined, { hint: "Length of the prompt" }),
      scalars("seen", `${STEP}s`, prompts.seen.map((steps) => steps.length), undefined,
        { hint: MODELS ? "Models that answered the prompt" : "Steps of the run in which the prompt was seen",
          ...(MODELS && prompts.seen.every((steps) => steps.length === MODELS.length) ? { hidden: true } : {}) }),
      scalars("n", "completions", prompts.n, undefined, { hint: `Completions of this prompt in the whole ${RUN}`,
        ...(MODELS && new Set(prompts.n).size < 2 ? { hidden: true } : {}) }),
      scalars("best", "best", prompts.best, undefined, { hint: "Highest total reward in the whole run" }),
      scalars("mean", "mean", prompts.mean, undefined, { hint: "Mean total reward in the whole run" }),
      // behind the numbers, which a narrow window would lose
      ...data.data_columns.filter((name) => name !== CHANGE).map(dataColumn),
    ];
  }

  function promptLink(p) {
    return `#view=compare&prompt=${p}`;
  }

  function completionLink(i) {
    const out = new URLSearchParams({ view: "compare", prompt: completions.prompt[i] });
    for (const [name, value] of Object.entries(address(i))) if (value !== null) out.set(...inAddress(name, value));
    return `#${out}`;
  }

  /** "format_reward" as "format" (and "format_reward_v2" as "format_v2"), where that leaves all names different. */
  function shortNames(names) {
    const short = names.map((name) => name.replace(/(?<=.)_reward(?=$|_v\d+$)/, ""));
    return new Set(short).size === short.length ? short : names;
  }

  function scoreColumns() {
    const short = shortNames(data.rewards.map((reward) => reward.name));
    return data.rewards.map((reward, at) => scalars(`score/${reward.name}`, short[at], completions.scores[reward.name] ?? [],
      undefined, { bar: [reward.low, reward.high], hint: rangeOf(reward) + (reward.decides ? "; decides what is right" : "") }));
  }

  function rangeOf(reward) {
    return `${visible(reward.name)}: from ${number(reward.low)} to ${number(reward.high)}`;
  }

  function extracted(i) {
    const span = completions.answer[i];
    return span ? completions.text[i].slice(...span) : null;
  }

  function judged(i) {
    return { true: "right", false: "wrong" }[completions.right[i]] ?? null;
  }

  /** Whether a column says how an evaluation's answer was decoded, which is the answer's name. */
  function decoded(name) {
    return MODELS && (name === "decoding" || name === "sample");
  }

  function completionColumns() {
    const groups = everyCompletion.some((i) => i && completions.group[i] !== completions.group[i - 1] &&
      completions.prompt[i] === completions.prompt[i - 1] && completions.step[i] === completions.step[i - 1]);
    const own = (name) => scalars(name, name, completions[name]);
    const extra = (name) => scalars(`extra/${name}`, name, completions.extras[name] ?? [], undefined,
      { searched: true, hint: hintOf(name, "logged by a reward") });
    const longest = Math.max(0, ...(MODELS ?? []).map((name) => name.length));
    return [
      { ...own("prompt"), hint: "The prompt's number in this page" },
      MODELS ? column("step", "model", "text", (i) => MODELS[completions.step[i]],
        { link: completionLink, width: Math.max(8, Math.min(28, longest + 4)) })
        : { ...own("step"), link: completionLink },
      { ...own("group"), hidden: !groups, hint: "Group of its step" },
      { ...own("place"), ...(MODELS ? { hidden: true } : {}), hint: "Place in its group" },
      ...data.extra_columns.filter(decoded).map(extra),
      { ...own("total"), hint: "Weighted sum of the scores" },
      column("right", "right", "state", judged,
        { hint: MODELS ? visible(data.hints.right) : "Judged by the reward that decides, at half of its range" }),
      ...scoreColumns(),
      column("text", "text", "long", (i) => completions.text[i],
        { searched: true, lower: lowerText("completions", completions.text) }),
      { ...own("advantage"), hint: "Total against the rest of its group, as the trainer used it" },
      { ...own("tokens") },
      column("extracted", "extracted", "text", extracted, { searched: true, hint: "The answer that was found in the text" }),
      ...data.extra_columns.filter((name) => !decoded(name)).map(extra),
      column("suspect", "suspect", "text", (i) => rulesOf(i).map((rule) => rule.title).join("; ") || null,
        { hidden: !data.suspects.rules.length }),
      column("question", "question", "long", (i) => prompts.text[completions.prompt[i]], { hidden: true,
        lower: (i) => lowerText("prompts", prompts.text)(completions.prompt[i]) }),
      ...data.data_columns.map((name) => scalars(`data/${name}`, name, prompts.data[name] ?? [],
        (i) => completions.prompt[i], { hidden: name !== SET && (name !== CHANGE || !data.change.kinds.length) })),
      { ...own("cut"), label: "characters cut", hidden: true },
    ];
  }

  function suspectColumns() {
    const said = column("why", "why", "text", (i) => whySuspect(i), { searched: true, width: 52 });
    const columns = completionColumns().filter(({ key }) => key !== "suspect" && key !== "text");
    const text = completionColumns().find(({ key }) => key === "text");
    const after = columns.findIndex(({ key }) => key === "right") + 1;
    const rule = completionColumns().find(({ key }) => key === "suspect");
    return [...columns.slice(0, after), { ...rule, label: "rule" }, said, text, ...columns.slice(after)];
  }

  function whySuspect(i) {
    const ids = state.rule ? [state.rule] : rulesOf(i).map((rule) => rule.id);
    const said = (id) => why(i, id) || rulesOf(i).find((rule) => rule.id === id)?.title;
    return ids.map(said).filter(Boolean).join("; ") || null;
  }

  // The reward log: one row a step of which anything is known.
  const log = { steps: [], at: new Map(), printed: new Map(), events: new Map() };

  function prepareLog() {
    data.metrics.step.forEach((step, at) => log.at.set(step, at));
    for (const { step, text } of data.printed) log.printed.set(step, (log.printed.get(step) ?? "") + text);
    for (const event of data.events) log.events.set(event.step, [...(log.events.get(event.step) ?? []), event]);
    const logged = new Set(completions.step); // extras are columns of these
    log.logged = logged;
    log.steps = [...new Set([...log.at.keys(), ...log.printed.keys(), ...log.events.keys()])].sort((a, b) => a - b);
  }

  /** "rewards/format_reward/mean" as "format mean", "completions/mean_length" as "mean_length", where all stay different. */
  function shortMetrics(names) {
    const score = /^rewards\/(.+?)(?:_reward)?((?:_v\d+)?)\/(mean|std)$/;
    const short = names.map((name) => name.replace(score, "$1$2 $3").replace(/^completions\//, ""));
    return new Map(names.map((name, at) => [name, new Set(short).size === short.length ? short[at] : name]));
  }

  // What is looked at first; everything else keeps its order behind it.
  const FIRST = [/^reward$/, /^reward/, /^frac_reward/, /^kl$/, /^entropy$/, /^completions\//, /^loss$/, /^grad_norm$/,
    /^learning_rate$/, /^/];

  function logColumns() {
    const own = data.metrics.own.filter((name) => data.metrics.columns[name]);
    const rank = (name) => FIRST.findIndex((pattern) => pattern.test(name));
    const rest = Object.keys(data.metrics.columns).filter((name) => !own.includes(name)).sort((a, b) => rank(a) - rank(b));
    const at = (row) => log.at.get(log.steps[row]) ?? -1;
    const events = (row) => log.events.get(log.steps[row])?.map(({ kind, said }) => `${kind}: ${said}`).join("; ") ?? null;
    const labels = shortMetrics([...own, ...rest]);
    const metric = (name) => scalars(`metric/${name}`, labels.get(name), data.metrics.columns[name], at, {
      spark: data.metrics.columns[name], hint: own.includes(name) ? `${visible(name)}: logged by a reward` : visible(name) });
    return [
      scalars("step", "step", log.steps),
      column("printed", "printed", "text", (row) => log.printed.get(log.steps[row]) ?? null,
        { searched: true, width: 22, hidden: !log.printed.size, hint: "What the rewards printed in this step" }),
      column("events", "events", "text", events, { searched: true, width: 22, hidden: !log.events.size }),
      ...own.map((name) => ({ ...metric(name), own: true })), ...rest.map(metric),
    ];
  }

  // ------------------------------------------------------------------ tables

  /**
   * A view that is a table: search, ranges, order, pages. What it needs:
   * { columns(), rows() (ids before search and ranges), depends() (what rows() reads of the state, for the cache), open(row),
   *   noun, empty (why there is nothing), controls (more elements of its toolbar), detail(row) (an element under an opened row) }
   */
  function table(view, needs) {
    const made = { view, ...needs, query: "", sort: null, ranges: new Map(), page: 0, cursor: 0, known: { key: null, rows: [] } };
    made.all = needs.columns();
    made.column = (key) => made.all.find((one) => one.key === key);
    const onePrompt = () => view === "completions" && state.scope !== null;
    made.shown = () => made.all.filter((one) => !one.hidden && !(one.key === "prompt" && onePrompt()));
    tables[view] = made;
    buildTable(made);
    return made;
  }

  /** The rows that search and ranges leave, in order; computed again only when one of them has changed. */
  function filtered(made) {
    const key = JSON.stringify([made.query, made.sort, [...made.ranges], made.depends?.() ?? null]);
    if (made.known.key === key) return made.known.rows;
    const matches = matcher(made), limits = [...made.ranges].map(([name, range]) => [made.column(name), ...range]);
    const inside = (row) => limits.every(([one, low, high]) => {
      const value = one.value(row);
      return value !== null && (low === null || value >= low) && (high === null || value <= high);
    });
    const rows = order(made, made.rows().filter((row) => inside(row) && matches(row)));
    made.known = { key, rows };
    return rows;
  }

  /** The column that a search names ("answer:42") with the rest, or every searched column. */
  function asked(made) {
    const query = made.query.trim().toLowerCase();
    // by its label, its key, or the name that the run has for it; of "answer" and "answer:x" the longer one
    const names = (one) => [one.label, one.key, one.key.replace(/^[a-z]+\//, "")].map((name) => [name.toLowerCase(), one]);
    const named = made.all.flatMap(names).filter(([name]) => query.startsWith(`${name}:`));
    if (!named.length) return { columns: made.all.filter((one) => one.searched), needle: query };
    const longest = Math.max(...named.map(([name]) => name.length));
    const columns = new Set(named.filter(([name]) => name.length === longest).map(([, one]) => one));
    return { columns: [...columns], needle: query.slice(longest + 1).trim(), named: true };
  }

  function matcher(made) {
    const { columns, needle, named } = asked(made);
    if (!needle) return () => true;
    const has = (one, row) => {
      if (one.lower) return one.lower(row).includes(needle);
      const value = one.value(row);
      if (value === null) return false;
      // a number that is named is meant as a whole: prompt:1 is not prompt 12
      return one.kind === "number" && named ? String(value) === needle : String(value).toLowerCase().includes(needle);
    };
    return (row) => columns.some((one) => has(one, row));
  }

  // A collator puts "item 9" before "item 10", but is too slow for whole completions.
  const COMPARE = { number: (a, b) => a - b, long: (a, b) => (a < b ? -1 : a > b ? 1 : 0) };
  const collator = new Intl.Collator("en", { numeric: true });

  /** Stable; rows without a value come last in both directions. */
  function order(made, rows) {
    const one = made.sort && made.column(made.sort.key);
    if (!one) return rows;
    const compare = COMPARE[one.kind] ?? collator.compare;
    const value = (row) => (one.kind === "text" ? textOrNull(one.value(row)) : one.value(row));
    const keyed = rows.map((row) => [row, one.lower ? one.lower(row) : value(row)]);
    const sign = made.sort.down ? -1 : 1;
    keyed.sort(([, a], [, b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
    return keyed.map(([row]) => row);
  }

  function textOrNull(value) {
    return value === null ? null : String(value);
  }

  function buildTable(made) {
    // what a new search or range leaves is seen from its first page on
    const change = (act) => {
      act();
      Object.assign(made, { page: 0, cursor: 0 });
      go({});
    };
    made.change = change;
    made.search = make("input", {
      type: "search", class: "search", placeholder: "Search, or column:text", autocomplete: "off", spellcheck: "false",
      "aria-label": `Search ${made.noun}s`, title: "Search (/); column:text looks into one column only",
      input: () => change(() => { made.query = made.search.value; }),
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== "ArrowDown") return;
        event.preventDefault();
        focusRow(made, 0);
      },
    });
    made.count = make("span", { class: "count" });
    made.chips = make("span", { class: "chips" });
    made.head = make("thead");
    made.body = make("tbody", { click: (event) => onRowClick(made, event), focusin: (event) => onRowFocus(made, event) });
    made.element = make("table", { "aria-label": made.noun + "s" }, make("colgroup"), made.head, made.body);
    made.box = make("div", { class: "table" }, made.element);
    made.nothing = make("p", { class: "nothing", hidden: true });
    made.pager = pager(made);
    const pages = make("span", { class: "pages" }, made.count, made.pager);
    $(made.view).append(make("div", { class: "bar" }, made.search, made.controls ?? [], rangeEditor(made), pages),
      made.chips, ...(made.above ? [made.above] : []), made.box, made.nothing);
  }

  function pager(made) {
    const turn = (to) => () => {
      Object.assign(made, { page: to(made.page), cursor: 0 });
      made.box.scrollTo(0, 0);
      go({});
    };
    return make("div", { class: "pager", role: "group", "aria-label": "Pages" },
      button("«", "First page", turn(() => 0)), button("‹", "Page before", turn((page) => page - 1)),
      make("span", { class: "range" }),
      button("›", "Next page", turn((page) => page + 1)), button("»", "Last page", turn(() => Infinity)));
  }

  /** Chooses a column of numbers and its least and most; each column that has a range shows as a chip. */
  function rangeEditor(made) {
    const columns = made.all.filter((one) => one.kind === "number" && !one.hidden);
    const read = () => made.change(() => {
      const range = [numberOr(low.value), numberOr(high.value)];
      if (range[0] === null && range[1] === null) made.ranges.delete(which.value);
      else made.ranges.set(which.value, range);
    });
    const input = (label) => make("input", { type: "number", step: "any", class: "bound", placeholder: label,
      "aria-label": label, input: read });
    const [low, high] = [input("min"), input("max")];
    const which = make("select", { "aria-label": "Column of the range", change: () => fill() },
      columns.map((one) => make("option", { value: one.key }, one.label)));
    const start = ["best", "step", "metric/reward"].find((key) => columns.some((one) => one.key === key));
    if (start) which.value = start;
    const fill = () => {
      const [least, most] = made.ranges.get(which.value) ?? [null, null];
      if (numberOr(low.value) !== least) low.value = least ?? "";
      if (numberOr(high.value) !== most) high.value = most ?? "";
    };
    made.fillRange = fill;
    return make("span", { class: "ranges" }, which, low, make("span", {}, "–"), high);
  }

  function renderTable(made) {
    const rows = filtered(made), pages = Math.max(1, Math.ceil(rows.length / PAGE));
    made.page = Math.min(made.page, pages - 1);
    const from = made.page * PAGE, onPage = rows.slice(from, from + PAGE);
    made.cursor = Math.max(0, Math.min(made.cursor, onPage.length - 1));
    made.onPage = onPage;
    if (made.search.value !== made.query) made.search.value = made.query;
    made.fillRange();
    renderChips(made);
    renderHead(made);
    const held = made.body.contains(document.activeElement);
    const { needle, columns } = asked(made);
    const shown = made.shown();
    made.body.replaceChildren(...onPage.flatMap((row, at) => rowElements(made, shown, row, at, needle, columns)));
    if (held) focusRow(made, made.cursor);
    const of = made.rows().length; // pages only ever come and go with the table itself, not while one types
    made.pager.hidden = of <= PAGE;
    made.count.textContent = rows.length === of ? plural(of, made.noun) : `${whole(rows.length)} of ${plural(of, made.noun)}`;
    renderPager(made, from, onPage.length, rows.length, pages);
    made.box.hidden = !rows.length;
    made.nothing.hidden = rows.length > 0;
    const unknown = !asked(made).named && /^([\w./-]+):/.exec(made.query.trim());
    made.nothing.textContent = !of ? made.empty() :
      `No ${made.noun} matches the search and the filters.${unknown ? ` There is no column “${unknown[1]}” here.` : ""}`;
    root.dataset.rows = rows.length;
  }

  function renderChips(made) {
    made.chips.replaceChildren(...[...made.ranges].map(([key, [low, high]]) => {
      const { label } = made.column(key);
      const said = `${low === null ? "" : `${low} ≤ `}${label}${high === null ? "" : ` ≤ ${high}`}`;
      return button(`${said} ×`, "Remove this range", () => made.change(() => made.ranges.delete(key)), { class: "chip" });
    }));
  }

  function renderPager(made, from, count, of, pages) {
    const [first, before, range, next, last] = made.pager.children;
    range.textContent = of ? `${whole(from + 1)}–${whole(from + count)} of ${whole(of)}` : "";
    first.disabled = before.disabled = made.page === 0;
    next.disabled = last.disabled = made.page >= pages - 1;
  }

  /** The header is made again only when its columns change: a press on it must not lose the focus. */
  function renderHead(made) {
    const shown = made.shown(), key = shown.map((one) => one.key).join("\n");
    if (made.headKey !== key) {
      made.headKey = key;
      const widths = shown.map((one) => widthOf(made, one));
      made.element.firstChild.replaceChildren(...widths.map((width) => {
        const col = make("col");
        if (width) col.style.width = `${width}ch`;
        return col;
      }));
      const least = widths.reduce((sum, width) => sum + (width || 36), 0);
      made.element.style.minWidth = `${least}ch`;
      made.head.replaceChildren(make("tr", {}, shown.map((one) => headCell(made, one))));
    }
    shown.forEach((one, at) => {
      const sorted = made.sort?.key === one.key ? (made.sort.down ? "descending" : "ascending") : "none";
      made.head.rows[0].cells[at].setAttribute("aria-sort", sorted);
    });
  }

  function headCell(made, one) {
    const sort = () => {
      const now = made.sort?.key === one.key ? made.sort : null;
      made.change(() => { made.sort = !now ? { key: one.key, down: false } : now.down ? null : { key: one.key, down: true }; });
    };
    const hint = `${one.hint ?? one.label}. Sort: up, down, as it was`;
    return make("th", { scope: "col", class: `is-${one.kind}${one.own ? " own" : ""}`, "data-column": one.key },
      button(make("span", {}, one.label), hint, sort), one.spark ? spark(one.spark) : null);
  }

  /** Characters that a column takes, fixed for all pages, so that nothing moves; 0: what the others leave. */
  function widthOf(made, one) {
    if (one.kind === "long") return 0;
    const label = Math.min(one.label.length, 20) + 2.5;
    if (one.width) return one.width;
    if (one.kind === "state") return 11;
    if (one.kind === "number") {
      one.digits ??= decimals(one.values ?? []);
      const [low, high] = (one.values ?? made.rows().map(one.value)).reduce(extremes, [Infinity, -Infinity]);
      const longest = low > high ? 1 : Math.max(number(low, one.digits).length, number(high, one.digits).length);
      return Math.max(label, longest + 2.5, one.spark ? 14 : 0);
    }
    const sample = made.rows().slice(0, 500).map((row) => String(one.value(row) ?? "").length);
    return Math.max(label, Math.min(24, Math.max(6, ...sample) + 2));
  }

  function rowElements(made, shown, row, at, needle, searched) {
    const cells = shown.map((one) => cell(one, row, searched.includes(one) ? needle : ""));
    const opened = made.detail && state.opened.has(row);
    const element = make("tr", { "data-row": at, "data-id": row, tabindex: at === made.cursor ? 0 : -1,
      "aria-expanded": made.detail ? String(opened) : null, class: at === made.cursor ? "cursor" : null }, cells);
    if (!opened) return [element];
    return [element, make("tr", { class: "detail" }, make("td", { colspan: shown.length }, made.detail(row)))];
  }

  function cell(one, row, needle) {
    const value = one.value(row);
    if (one.kind === "state") {
      return make("td", { class: `is-state state ${value ?? "unknown"}` }, value ? verdict(value === "right") : "–");
    }
    if (one.kind !== "number") {
      if (value === null) return make("td", { class: `is-${one.kind}` }, make("span", { class: "none" }, "–"));
      const title = one.kind === "text" ? visible(value, 600) : null, tone = one.tone?.(value);
      const shown = preview(String(value), needle, one.line?.(row));
      return make("td", { class: `is-${one.kind}${tone ? ` state ${tone}` : ""}`, title },
        one.link ? make("a", { href: one.link(row), tabindex: -1 }, shown) : shown);
    }
    one.digits ??= decimals(one.values ?? []);
    const text = number(value, one.digits);
    const inner = one.link ? make("a", { href: one.link(row), tabindex: -1 }, text) : text;
    return make("td", { class: "is-number", title: value === null ? null : String(value) },
      inner, one.bar && value !== null ? bar(value, one.bar) : null);
  }

  function bar(value, [low, high]) {
    const fill = make("i");
    fill.style.width = `${100 * Math.min(1, Math.max(0, (value - low) / (high - low || 1)))}%`;
    return make("span", { class: "meter", "aria-hidden": "true" }, fill);
  }

  function verdict(right) {
    return right === null ? "not judged" : right ? "✓ right" : "✗ wrong";
  }

  /** The start of a text on one line, or the surroundings of what was searched for. */
  function preview(text, needle, line) {
    const at = needle ? text.toLowerCase().indexOf(needle) : -1;
    if (at < 0) return line ?? visible(text);
    const from = at > 24 ? at - 12 : 0; // in a narrow column too
    const end = at + needle.length;
    return [from ? "…" : "", visible(cut(text, at - from, from), 999), make("mark", {}, visible(text.slice(at, end), 999)),
      visible(text.slice(end, end + 240))];
  }

  function spark(values) {
    const numbers = values.filter((value) => typeof value === "number");
    if (numbers.length < 2) return null;
    const [low, high] = numbers.reduce(extremes, [Infinity, -Infinity]);
    const range = high - low || 1, every = Math.ceil(values.length / 200);
    let path = "", pen = "M";
    for (let at = 0; at < values.length; at += every) {
      if (typeof values[at] !== "number") {
        pen = "M";
        continue;
      }
      path += `${pen}${((at / (values.length - 1)) * 100).toFixed(1)} ${(15 - ((values[at] - low) / range) * 14).toFixed(1)}`;
      pen = "L";
    }
    return make("svg:svg", { class: "spark", viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" },
      make("svg:path", { d: path }));
  }

  function focusRow(made, at) {
    const row = made.body.querySelector(`tr[data-row="${at}"]`);
    if (row) row.focus({ preventScroll: false });
  }

  function onRowFocus(made, event) {
    const row = event.target.closest("tr[data-row]");
    if (!row) return;
    const was = made.body.querySelector("tr.cursor");
    if (was) {
      was.classList.remove("cursor");
      was.setAttribute("tabindex", "-1");
    }
    row.classList.add("cursor");
    row.setAttribute("tabindex", "0");
    made.cursor = Number(row.dataset.row);
  }

  function onRowClick(made, event) {
    const row = event.target.closest("tr[data-row]");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return; // a link opens beside, as everywhere
    event.preventDefault();
    if (String(getSelection()).length) return; // text was marked, to be copied
    made.cursor = Number(row.dataset.row);
    made.open(Number(row.dataset.id));
  }

  /** Moves the row that has the focus; over the end of a page to the next one. */
  function moveRow(made, by) {
    const held = made.body.contains(document.activeElement), to = held ? made.cursor + by : made.cursor;
    const pages = Math.ceil(filtered(made).length / PAGE);
    if (to >= 0 && to < made.onPage.length) {
      focusRow(made, to);
    } else if (by > 0 ? made.page < pages - 1 : made.page > 0) {
      Object.assign(made, { page: made.page + by, cursor: by > 0 ? 0 : PAGE - 1 });
      go({});
      focusRow(made, made.cursor);
    }
  }

  // ------------------------------------------------------------------ views that are tables

  function openCompletion(i) {
    go({ view: "compare", prompt: completions.prompt[i], right: null, ...address(i) }, true);
  }

  function openPrompt(p) {
    go({ view: "compare", prompt: p, step: null, place: null, group: null, right: null }, true);
  }

  const JUDGED = [["", "right or wrong"], ["right", "right"], ["wrong", "wrong"], ["unknown", "not judged"]];

  /** Marks the one of a list's buttons that is chosen. */
  function pressed(list, name, chosen) {
    for (const one of list.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset[name] === chosen));
  }

  function buildTables() {
    const kinds = data.change?.kinds.length ? changeButtons() : null;
    table("prompts", { columns: promptColumns, rows: () => prompts.text.map((_, p) => p), open: openPrompt, noun: "prompt",
      empty: () => `This ${RUN} has no prompts yet.`, above: kinds });
    if (kinds) tables.prompts.refresh = () => pressed(kinds, "query", tables.prompts.query);

    const scope = make("input", {
      type: "number", min: 0, max: Math.max(0, prompts.text.length - 1), placeholder: "all", class: "bound", id: "scope",
      input: () => inTable("completions", { scope: scope.value === "" ? null : Math.max(0, Math.floor(Number(scope.value))) }),
    });
    const judge = make("select", {
      id: "judged", "aria-label": "Right or wrong", change: () => inTable("completions", { judged: judge.value }),
    }, JUDGED.map(([value, label]) => make("option", { value }, label)));
    const model = make("select", {
      id: "model", "aria-label": "Model", change: () => inTable("completions", { model: model.value }),
    }, make("option", { value: "" }, "all models"),
    (MODELS ?? []).map((name, at) => make("option", { value: name }, stepName(at))));
    const above = make("p", { class: "prompt-line" });
    const keep = (i) => (!state.judged || (judged(i) ?? "unknown") === state.judged) &&
      (!state.model || MODELS[completions.step[i]] === state.model);
    table("completions", {
      columns: completionColumns, noun: "completion", open: openCompletion, above, empty: emptyCompletions,
      rows: () => (state.scope === null ? everyCompletion : ofPrompt[state.scope] ?? []).filter(keep),
      depends: () => [state.scope, state.judged, state.model],
      controls: [make("label", {}, "prompt ", scope), judge, ...(MODELS ? [model] : [])],
    });
    tables.completions.refresh = () => {
      if (numberOr(scope.value) !== state.scope) scope.value = state.scope ?? "";
      judge.value = state.judged;
      model.value = state.model;
      above.hidden = state.scope === null || !prompts.text.length;
      if (!above.hidden) above.replaceChildren(...promptLine(state.scope));
    };

    buildSuspects();
    if (!MODELS) table("log", { columns: logColumns, noun: "step", rows: () => log.steps.map((_, row) => row), open: toggleStep,
      detail: stepDetail, empty: () => "Nothing was logged in this run yet." });
  }

  /** What became of the prompts, each kind as a button that searches for it. */
  function changeButtons() {
    const made = () => tables.prompts, here = prompts.data[CHANGE];
    const counts = ({ name, n }) => {
      const kept = here.filter((value) => value === name).length;
      return kept === n ? whole(n) : `${whole(kept)} of ${whole(n)}`;
    };
    const choice = (query, label, said, count) => button([label, make("span", { class: "badge" }, count)], said,
      () => made().change(() => { made().query = query; }), { "data-query": query });
    const of = (kind) => choice(`${CHANGE}:${kind.name}`, visible(kind.name, 40), visible(kind.said, 240), counts(kind));
    return make("ul", { class: "rules kinds", "aria-label": "What became of the prompts" },
      [choice("", "All", null, whole(prompts.text.length)), ...data.change.kinds.map(of)].map((one) => make("li", {}, one)));
  }

  function inTable(view, change) {
    Object.assign(tables[view], { page: 0, cursor: 0 });
    go(change);
  }

  function emptyCompletions() {
    if (!total) {
      return `This ${RUN} has no completions${MODELS ? "" : " yet: they are written with the first training step"}.`;
    }
    const of = `No completion ${state.scope === null ? "" : "of this prompt "}is`;
    if (state.model) return `${of} of this model${state.judged ? " and judged so" : ""}.`;
    if (state.judged) return `${of} judged so.`;
    return notKept(state.scope);
  }

  function notKept(p) {
    return `No completion of prompt ${p} is in this page (${plural(prompts.n[p], "completion")} in the ${RUN}). ` +
      visible(data.selection.left_out, 400);
  }

  function promptLine(p) {
    return [button(`Prompt ${p}`, "Open this prompt in Compare", () => openPrompt(p), { class: "link" }), " ",
      make("bdi", { class: "model" }, promptPreview(p))];
  }

  function buildSuspects() {
    const inRule = new Map([["", everyCompletion.filter((i) => completions.suspect[i] > 0)]]);
    for (const rule of data.suspects.rules) {
      const sets = data.suspects.sets.map((ids) => ids.includes(rule.id));
      inRule.set(rule.id, everyCompletion.filter((i) => sets[completions.suspect[i]]));
    }
    const counts = (rule) => {
      const here = inRule.get(rule.id).length;
      return here === rule.n ? whole(here) : `${whole(here)} of ${whole(rule.n)}`;
    };
    const choice = (id, title, count) => make("li", {}, button([visible(title, 80), make("span", { class: "badge" }, count)],
      null, () => inTable("suspects", { rule: id }), { "data-rule": id }));
    const list = make("ul", { class: "rules", "aria-label": "Rules" }, choice("", "All", whole(inRule.get("").length)),
      data.suspects.rules.map((rule) => choice(rule.id, rule.title, counts(rule))));
    const said = make("p", { class: "said", id: "rule-said" });
    $("suspects").append(list, said);
    table("suspects", { columns: suspectColumns, noun: "suspect", open: openCompletion, depends: () => state.rule,
      rows: () => inRule.get(state.rule) ?? [], empty: () => "No completion of this page is named by this rule." });
    tables.suspects.refresh = () => {
      if (!inRule.has(state.rule)) {
        state.notices.push(`There is no rule “${visible(state.rule, 40)}” in this page; all suspects are shown.`);
        state.rule = "";
      }
      pressed(list, "rule", state.rule);
      const rule = data.suspects.rules.find(({ id }) => id === state.rule);
      said.textContent = !rule ? "Completions that at least one rule names: worth reading first. A rule is no verdict." :
        visible(rule.said, 600) +
        (inRule.get(rule.id).length === rule.n ? "" : ` (${plural(rule.n, "completion")} in the whole ${RUN})`);
    };
  }

  function toggleStep(row) {
    if (!state.opened.delete(row)) state.opened.add(row);
    go({});
    focusRow(tables.log, tables.log.cursor);
  }

  /** What is known of a step beside its numbers: events, what was printed, and the way to its completions. */
  function stepDetail(row) {
    const step = log.steps[row], printed = log.printed.get(step), events = log.events.get(step) ?? [];
    const box = make("pre", { class: "model" });
    if (printed !== undefined) fillText(box, printed, [], `printed ${step}`);
    const extras = data.extra_columns.length ? `, with ${data.extra_columns.map((name) => visible(name, 40)).join(", ")}` : "";
    const open = () => {
      Object.assign(tables.completions, { ranges: new Map([["step", [step, step]]]), query: "", page: 0, cursor: 0 });
      go({ view: "completions", scope: null, judged: "" }, true);
    };
    return make("div", { class: "step" },
      events.map(({ kind, said }) => make("p", {}, make("b", {}, visible(kind, 60)), ` ${visible(said, 1000)}`)),
      printed === undefined ? null : [make("p", { class: "quiet" }, "Printed by the rewards:"), box],
      events.length || printed !== undefined ? null
        : make("p", { class: "quiet" }, "No event, and nothing was printed in this step."),
      log.logged.has(step) ? button(`Completions of step ${step}${extras}`, "Show them as a table", open) : null);
  }

  // ------------------------------------------------------------------ compare

  const parts = {}; // the elements of Compare, made once: a slider that is dragged must stay the same element

  function buildCompare() {
    parts.prompt = make("input", {
      type: "number", min: 0, max: Math.max(0, prompts.text.length - 1), class: "bound", id: "compare-prompt",
      input: () => {
        const p = numberOr(parts.prompt.value);
        if (p !== null && p >= 0) openAt(Math.floor(p));
      },
    });
    parts.of = make("span", { class: "quiet" });
    parts.diff = make("input", { type: "checkbox", id: "diff", change: () => go({ diff: parts.diff.checked }) });
    parts.all = button("All completions of this prompt", "Show them as a table (3)", () => show("completions"));
    parts.summary = make("span");
    parts.question = make("div", { class: "model text" });
    parts.details = make("details", { class: "question", open: true },
      make("summary", {}, "Prompt ", parts.summary), parts.question);
    parts.strip = make("svg:svg", { class: "strip", role: "img", click: onStrip,
      "aria-label": `Total of every completion of this prompt, by ${STEP}` });
    parts.slider = make("input", { type: "range", id: "step", min: 0,
      "aria-label": `${MODELS ? "Model" : "Step"} of the left completion`,
      input: () => toStep(Number(parts.slider.value)) });
    parts.stepText = make("span", { class: "quiet" });
    parts.time = make("div", { class: "time" }, make("div", { class: "track" }, parts.strip, parts.slider), parts.stepText);
    parts.panes = make("div", { class: "panes" }, buildPane("left", leftButtons()), buildPane("right", rightButtons()));
    parts.none = make("p", { class: "nothing", hidden: true });
    const choose = [button("‹", "Previous prompt (p)", () => movePrompt(-1)), make("label", {}, "prompt ", parts.prompt),
      parts.of, button("›", "Next prompt (n)", () => movePrompt(1))];
    const differences = make("label", { title: "Mark the words that differ (d)" }, parts.diff, " differences");
    $("compare").append(make("div", { class: "bar" }, choose, differences, parts.all, legend()),
      parts.details, parts.time, parts.none, parts.panes);
  }

  function leftButtons() {
    const act = (name, label, title, press) => button(label, title, press, { "data-act": name });
    const choose = (place) => () => go({ place, group: null, step: currentStep() });
    const usually = () => act("usual", placeName(1), "The model's first answer", choose(null));
    return [...(MODELS ? [modelSelect("left", toModel), usually()] : []),
      act("best", "best", `Best of this ${STEP}`, choose(MODELS ? "best" : null)),
      act("worst", "worst", `Worst of this ${STEP}`, choose("worst")),
      act("before", "‹", `Completion before, in this ${STEP} (←)`, () => movePlace(-1)),
      make("span", { class: "quiet where" }),
      act("next", "›", `Next completion in this ${STEP} (→)`, () => movePlace(1)),
      act("pin", "Pin right →", "Keep this completion on the right", pin)];
  }

  function rightButtons() {
    const reset = button("Reset", `Show ${usualRight()} again`, () => go({ right: null }), { "data-act": "reset" });
    return [...(MODELS ? [modelSelect("right", pinModel)] : []), make("span", { class: "quiet where" }), reset];
  }

  /** Chooses a side's model by its name. */
  function modelSelect(side, choose) {
    return make("select", { "data-model": side, "aria-label": `Model on the ${side}`,
      change: (event) => choose(Number(event.target.value)) });
  }

  function toModel(model) {
    toStep(compared().steps.indexOf(model));
  }

  /** Pins the same answer (greedy, or that sample) of another model on the right. */
  function pinModel(model) {
    const { mine, right } = compared(), there = mine.filter((i) => completions.step[i] === model);
    if (!there.length) return;
    const place = nearest(there.map((i) => completions.place[i]), completions.place[right]);
    go({ right: addressText(there.find((i) => completions.place[i] === place)) });
  }

  /** Offers the models that answered this prompt; made again only for others, as one may be choosing right now. */
  function fillModels(side, steps, i) {
    const made = parts[side].model, key = steps.join(" ");
    if (made.dataset.models !== key) {
      made.dataset.models = key;
      made.replaceChildren(...steps.map((step) => make("option", { value: step }, stepName(step))));
    }
    made.value = completions.step[i];
    made.disabled = steps.length < 2;
  }

  function buildPane(side, buttons) {
    const made = {
      title: make("h2"), verdict: make("span"), facts: make("dl", { class: "facts" }), scores: make("dl", { class: "scores" }),
      status: make("p", { class: "status" }), where: buttons.find((one) => one.matches(".where")), buttons: {},
      model: buttons.find((one) => one.matches("select")),
      text: make("div", { class: "model text", tabindex: 0, role: "region", "aria-label": `Text on the ${side}` }),
    };
    for (const one of buttons) if (one.dataset.act) made.buttons[one.dataset.act] = one;
    parts[side] = made;
    return make("article", { class: `pane ${side}`, id: side, "aria-label": `Completion on the ${side}` },
      make("header", {}, made.title, made.verdict, make("div", { class: "choose" }, buttons)),
      make("div", { class: "about" }, made.facts, made.scores), made.status, made.text);
  }

  function legend() {
    const marks = [["del", "removed", "only left"], ["ins", "added", "only right"], ["span", "tag", "tag"],
      ["span", "reasoning", "reasoning"], ["span", "answer", "answer"], ["mark", "found", "extracted"]];
    return make("span", { class: "legend", "aria-label": "Legend" },
      marks.map(([tag, name, label]) => make(tag, { class: name }, label)));
  }

  function currentStep() {
    const { left } = compared();
    return left === undefined ? null : completions.step[left];
  }

  function openAt(p) {
    go({ prompt: p, step: null, place: null, group: null, right: null });
  }

  /** Next or previous prompt, in the order in which the table of prompts stands now. */
  function movePrompt(by) {
    const listed = filtered(tables.prompts), at = listed.indexOf(state.prompt);
    const list = at < 0 ? prompts.text.map((_, p) => p) : listed;
    const to = list[(at < 0 ? state.prompt : at) + by];
    if (to !== undefined) openAt(to);
  }

  function toStep(at) {
    const { steps } = compared(), step = steps[Math.max(0, Math.min(steps.length - 1, at))];
    if (step === undefined) return;
    // "best" and "worst" stay so from step to step, a place as near as it can be
    const there = compared().mine.filter((i) => completions.step[i] === step);
    const place = typeof state.place === "number" ? nearest(there.map((i) => completions.place[i]), state.place) : state.place;
    go({ step, place, group: null });
  }

  function moveStep(by) {
    const { steps } = compared();
    toStep(steps.indexOf(currentStep()) + by);
  }

  function movePlace(by) {
    const { there, left } = compared();
    const to = there[there.indexOf(left) + by];
    if (to !== undefined) go(address(to));
  }

  function pin() {
    const { left } = compared();
    if (left !== undefined) go({ right: addressText(left), ...address(left) });
  }

  function onStrip(event) {
    const { mine, steps } = compared(), box = parts.strip.getBoundingClientRect();
    const far = (i) => {
      const [x, y] = onStripAt(i, steps, totalRange(mine));
      return Math.hypot(box.left + (x / 100) * box.width - event.clientX, box.top + (y / 100) * box.height - event.clientY);
    };
    if (mine.length) go(address(mine.reduce((near, i) => (far(i) < far(near) ? i : near), mine[0])));
  }

  function totalRange(mine) {
    return mine.map((i) => worth[i]).reduce(extremes, [Infinity, -Infinity]);
  }

  /** Where a completion stands in the strip, in percent. */
  function onStripAt(i, steps, [low, high], value = worth[i]) {
    const across = steps.length > 1 ? (100 * steps.indexOf(completions.step[i])) / (steps.length - 1) : 50;
    const up = value === null ? 0 : high > low ? (value - low) / (high - low) : 0.5;
    return [across, 88 - 76 * up];
  }

  function renderStrip({ mine, steps, left, right }) {
    const range = totalRange(mine), every = Math.ceil(mine.length / 1500);
    const dot = (i, name, r) => {
      const [x, y] = onStripAt(i, steps, range);
      return make("svg:circle", { cx: `${x}%`, cy: `${y}%`, r, class: name });
    };
    const dots = mine.filter((_, at) => at % every === 0).map((i) => dot(i, "", 2));
    parts.strip.replaceChildren(...meanLines(mine, steps, range), ...dots, dot(right, "right", 4), dot(left, "left", 4));
  }

  /** The mean total of every step, joined by lines. */
  function meanLines(mine, steps, range) {
    const means = steps.map((step) => meanOf(mine.filter((i) => completions.step[i] === step)));
    const x = (at) => `${(100 * at) / (steps.length - 1)}%`, y = (mean) => `${onStripAt(null, steps, range, mean)[1]}%`;
    return means.flatMap((mean, at) => {
      const before = at ? means[at - 1] : null;
      return mean === null || before === null ? [] : [make("svg:line", { x1: x(at - 1), y1: y(before), x2: x(at), y2: y(mean) })];
    });
  }

  function meanOf(list) {
    const totals = list.map((i) => worth[i]).filter((value) => value !== null);
    return totals.length ? totals.reduce((sum, value) => sum + value, 0) / totals.length : null;
  }

  let lastDifference = { key: "", found: null };

  function differenceOf(left, right) {
    const key = `${left} ${right}`;
    if (lastDifference.key !== key) lastDifference = { key, found: difference(completions.text[left], completions.text[right]) };
    return lastDifference.found;
  }

  function renderCompare() {
    const p = state.prompt, has = prompts.text.length > 0 && p !== null;
    const what = has ? compared() : { mine: [], steps: [], there: [] };
    root.dataset.rows = what.mine.length;
    for (const one of [parts.details, parts.time, parts.panes, parts.all]) one.hidden = !has;
    if (numberOr(parts.prompt.value) !== p) parts.prompt.value = p ?? "";
    parts.of.textContent = has ? ofList(p) : "";
    parts.diff.checked = state.diff;
    parts.none.hidden = has && what.mine.length > 0;
    if (!has) parts.none.textContent = `This ${RUN} has no prompts yet: they come with its first completions.`;
    else renderQuestion(p);
    if (has && what.mine.length) renderPair(what);
    if (!has || what.mine.length) return;
    parts.none.textContent = notKept(p);
    parts.time.hidden = parts.panes.hidden = true;
  }

  function ofList(p) {
    const listed = filtered(tables.prompts), at = listed.indexOf(p);
    if (listed.length === prompts.text.length && !tables.prompts.sort) return `of ${whole(listed.length)}`;
    return at < 0 ? "not in the filtered list" : `${whole(at + 1)} of ${whole(listed.length)} in the list`;
  }

  function renderQuestion(p) {
    const known = [...data.data_columns.map((name) => `${visible(name, 40)} ${scalarText(prompts.data[name]?.[p])}`),
      prompts.tokens[p] === null ? null : plural(prompts.tokens[p], "token"), plural(prompts.seen[p].length, STEP),
      plural(prompts.n[p], "completion"),
      ...(MODELS ? [] : [`best ${scalarText(prompts.best[p])}`, `mean ${scalarText(prompts.mean[p])}`])];
    parts.summary.replaceChildren(make("bdi", { class: "quiet" }, known.filter(Boolean).join(" · ")));
    if (parts.shown === p) return;
    parts.shown = p;
    fillText(parts.question, prompts.text[p], shared ? [{ start: 0, end: shared, name: "shared" }] : [], `prompt ${p}`);
    const asked = parts.question.querySelector(".shared:last-of-type");
    // the question first; what all prompts share is above it
    parts.question.scrollTo(0, asked ? asked.offsetTop + asked.offsetHeight : 0);
  }

  function scalarText(value) {
    if (value === null || value === undefined) return "–";
    return typeof value === "number" ? number(value, decimals([value])) : visible(value, 60);
  }

  function renderPair(what) {
    const { steps, there, left, right } = what, at = steps.indexOf(completions.step[left]);
    parts.time.hidden = steps.length < 2;
    parts.slider.max = steps.length - 1;
    parts.slider.value = at;
    parts.slider.setAttribute("aria-valuetext", MODELS ? stepName(completions.step[left]) : `step ${completions.step[left]}`);
    const seen = prompts.seen[state.prompt].length;
    parts.stepText.textContent = `${stepName(completions.step[left])} · ${whole(at + 1)} of ${whole(steps.length)} ${STEP}s` +
      (seen > steps.length ? ` kept (${whole(seen)} seen)` : "");
    if (!parts.time.hidden) renderStrip(what);
    const same = completions.text[left] === completions.text[right] && completions.cut[left] === completions.cut[right];
    const found = state.diff && !same ? differenceOf(left, right) : null;
    renderPane("left", left, right, found, same);
    renderPane("right", right, left, found, same);
    renderChoice(there, left);
    parts.right.where.textContent = state.right !== null ? "pinned" : MODELS ? "" : "best of the latest step";
    if (MODELS) for (const [side, i] of [["left", left], ["right", right]]) fillModels(side, steps, i);
    parts.right.buttons.reset.disabled = state.right === null;
  }

  function renderChoice(there, left) {
    const made = parts.left, at = there.indexOf(left), place = completions.place[left];
    const all = there.length === place || there.every((i, k) => completions.place[i] === completions.place[there[0]] + k);
    made.where.textContent = MODELS ? `${at + 1} of ${there.length}`
      : all ? `place ${place} of ${there.length}` : `place ${place}, ${at + 1} of ${there.length} kept`;
    made.buttons.usual?.setAttribute("aria-pressed", String(left === there[0]));
    const { best: top, worst, before, next, pin: keep } = made.buttons;
    top.setAttribute("aria-pressed", String(left === best(there)));
    worst.setAttribute("aria-pressed", String(left === best(there, -1)));
    top.disabled = worst.disabled = there.length < 2;
    before.disabled = at === 0;
    next.disabled = at === there.length - 1;
    keep.disabled = state.right === addressText(left);
  }

  function renderPane(side, i, other, found, same) {
    const made = parts[side];
    const { step, place, group } = address(i);
    made.title.textContent = MODELS ? `${stepName(step)}, ${placeName(place)}`
      : `Step ${whole(step)}, place ${place}${group === null ? "" : `, group ${group}`}`;
    made.verdict.className = `state ${judged(i) ?? "unknown"}`;
    made.verdict.textContent = verdict(completions.right[i]);
    renderFacts(made, side, i, other);
    const prompt = prompts.text[state.prompt], text = completions.text[i];
    const marks = data.marks.map((mark) => findMark(text, mark, prompt, completions.cut[i] > 0));
    const layers = marks.flatMap((mark) => mark.layers);
    const span = completions.answer[i];
    if (span) layers.push({ start: span[0], end: span[1], name: "found" });
    for (const [start, end] of found?.[side] ?? []) layers.push({ start, end, name: side === "left" ? "removed" : "added" });
    made.status.replaceChildren(...statusOf(side, i, other, found, same, marks.flatMap((mark) => mark.problems)));
    fillText(made.text, text, layers, `completion ${i}`, completions.cut[i]);
  }

  /** What a total is the sum of at a step, as far as the log has it. */
  function sumAt(step) {
    const { step: steps, columns } = data.metrics;
    const at = Math.max(0, steps.findLastIndex((one) => one <= step));
    return JSON.stringify(Object.keys(columns).filter((name) => name.startsWith("weight/")).map((name) => columns[name][at]));
  }

  function statusOf(side, i, other, found, same, problems) {
    const said = [];
    if (i === other) said.push("The same completion on both sides.");
    else if (same) said.push("Both texts are identical.");
    else if (state.diff && !found) said.push("The texts are too long or too different to compare word by word.");
    else if (found && side === "left") said.push(`− ${plural(found.words[0], "word")} only here`);
    else if (found) said.push(`+ ${plural(found.words[1], "word")} only here`);
    if (side === "right" && sumAt(completions.step[i]) !== sumAt(completions.step[other])) {
      said.push("Weights or rewards differ between these two steps: their totals are different sums.");
    }
    return [...said.map((text) => make("span", {}, text)), ...problems.map((text) => make("span", { class: "problem" }, text)),
      ...rulesOf(i).map((rule) => make("span", { class: "problem", title: visible(rule.said, 400) },
        `suspect: ${visible(rule.title, 80)}`, why(i, rule.id) ? ` (${visible(why(i, rule.id), 300)})` : ""))];
  }

  function renderFacts(made, side, i, other) {
    const digits = (values) => decimals([values[i], values[other]]);
    const difference = (values) => {
      if (side === "left" || values[i] === null || values[other] === null || values[i] === values[other]) return null;
      return make("span", { class: "delta", title: "Against the left" }, signed(values[i] - values[other], digits(values)));
    };
    const fact = (label, value, title) => make("div", {}, make("dt", {}, visible(label, 60)), make("dd", { title }, value));
    const plain = (name) => fact(name, [number(completions[name][i], digits(completions[name])), difference(completions[name])]);
    const text = (label, value, title) => fact(label, make("bdi", { class: "mono" }, scalarText(value)), title);
    const has = (name) => !MODELS || completions[name].some((value) => value !== null);
    made.facts.replaceChildren(...["total", "advantage", "tokens"].filter(has).map(plain),
      text("extracted", extracted(i), "The answer that was found in the text"),
      ...data.extra_columns.filter((name) => !decoded(name)).map((name) => text(name, completions.extras[name]?.[i])));
    made.scores.replaceChildren(...data.rewards.map((reward) => {
      const values = completions.scores[reward.name] ?? [], value = values[i] ?? null;
      const meter = value === null ? make("span", { class: "meter" }) : bar(value, [reward.low, reward.high]);
      return make("div", { "data-reward": reward.name }, make("dt", { title: rangeOf(reward) }, visible(reward.name, 60)),
        make("dd", {}, meter, make("span", { class: "value" }, number(value, digits(values))), difference(values)));
    }));
  }

  // ------------------------------------------------------------------ header, help, theme, export

  function buildFrame() {
    const { run, selection } = data, notes = run.notes ?? [];
    const about = [run.model, run.status, MODELS ? "" : plural(run.steps ?? 0, "step"), plural(prompts.text.length, "prompt"),
      plural(total, "completion")];
    const aboutText = about.filter(Boolean).map((text) => visible(text, 120)).join(" · ");
    const help = () => $("help").showModal();
    const kept = (most) => [make("bdi", {}, visible(selection.said, most)),
      ...(selection.left_out ? [" ", make("b", {}, "Left out:"), " ", make("bdi", {}, visible(selection.left_out, most))] : [])];
    $("run-name").textContent = visible(run.name, 80);
    $("run-about").append(make("bdi", {}, aboutText));
    $("selection").append(...kept(240));
    const note = button(plural(notes.length, "note"), `Notes on this ${RUN}`, help, { class: "link" });
    if (notes.length) $("selection").append(" · ", note);
    const made = visible(run.made ?? "", 40).replace("T", " ").slice(0, 16);
    const lines = [aboutText, kept(2000), ...notes.map((text) => visible(text, 400)), made && `This page was made ${made}.`];
    $("help").append(make("h2", {}, `This ${RUN}`), ...lines.filter(Boolean).map((line) => make("p", {}, line)));
    $("views").append(...views.map(([view, label], at) => button(label, `${label} (key ${at + 1})`, () => show(view),
      { "data-view": view })));
    $("export").addEventListener("click", exportCsv);
    $("theme").addEventListener("click", nextTheme);
    $("open-help").addEventListener("click", help);
  }

  const KEYS = [[`1 – ${views.length}`, "views"], ["/", "search; Enter or ↓ goes to the rows, Esc leaves"],
    ["j k ↓ ↑", "next and previous row"],
    ["Enter", "open the row"], ["← →", `completions within the ${STEP} (Compare)`],
    ["Shift+← → or [ ]", `${STEP}s (Compare)`],
    ["n p", "next and previous prompt, in the order of the table of prompts (Compare)"],
    ["d", "differences on and off (Compare)"], ["e", "save the view as CSV"],
    ["t", "theme"], ["?", "this help"], ["Esc", "close, leave a field"]];
  const firstKind = data.change?.kinds[0]?.name; // a regression, where there is one
  const WORDS = [["Prompts", !MODELS ? "every prompt of this page; best and mean are of the whole run."
    : `every prompt of this page, what became worse first${firstKind ? `; ${CHANGE}:${firstKind} finds those alone` : ""}.`],
    ["Compare", `two completions of one prompt; on the right ${usualRight()}, unless you pin another.`],
    ["Suspects", "completions that a rule found worth reading: a rule is no verdict."],
    ["Search", `finds parts of words in any case; ${MODELS ? "gold" : "answer"}:42 looks only into the column ` +
      `“${MODELS ? "gold" : "answer"}”.`],
    ["Address", "the address of the page holds what you see: copy it to come back, or to show it to someone."]];

  function buildHelp() {
    const line = (tag) => ([name, said]) => [make("dt", {}, make(tag, {}, name)), make("dd", {}, said)];
    const list = (rows, tag) => make("dl", {}, rows.map(line(tag)));
    $("help").prepend(button("Close", "Close (Esc)", () => $("help").close(), { class: "close" }),
      make("h2", { id: "help-title" }, "Keys"), list(KEYS, "kbd"),
      make("h2", {}, "What is what"), list(WORDS, "b"), make("p", {}, "In a text: ", legend()));
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");

  function stored(theme) {
    try {
      if (theme !== undefined) localStorage.setItem("completions-theme", theme);
      return localStorage.getItem("completions-theme");
    } catch (error) {
      return theme; // a sandboxed frame has no storage
    }
  }

  function setTheme(theme) {
    root.dataset.choice = theme;
    root.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
    $("theme").textContent = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme];
    $("theme").setAttribute("aria-label", `Theme: ${theme}`);
  }

  function nextTheme() {
    const theme = THEMES[(THEMES.indexOf(root.dataset.choice) + 1) % THEMES.length];
    stored(theme);
    setTheme(theme);
  }

  /** A cell as RFC 4180 has it; a spreadsheet would run a text that begins like a formula. */
  function csvCell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number" || typeof value === "boolean") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }

  function exportCsv() {
    const comparing = state.view === "compare", made = tables[comparing ? "completions" : state.view];
    const rows = comparing ? ofPrompt[state.prompt] ?? [] : filtered(made);
    // a name alone could be that of another column, so the key is written where it says whose it is
    const names = made.all.map((one) => csvCell(one.key.includes("/") ? one.key : one.label));
    const lines = [names, ...rows.map((row) => made.all.map((one) => csvCell(one.value(row))))];
    const text = `\uFEFF${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
    const name = String(data.run.name).normalize("NFKD").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    make("a", { href: url, download: `${name || RUN}-${state.view}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    tell(`${plural(rows.length, "row")} saved as CSV`);
  }

  let telling = 0;

  /** Says a thing to a screen reader, once typing or dragging has come to rest. */
  function tell(text) {
    clearTimeout(telling);
    telling = setTimeout(() => { $("live").textContent = text; }, 400);
  }

  // ------------------------------------------------------------------ keys

  function isField(element) {
    return element.matches?.("textarea, select, input:not([type=range]):not([type=checkbox])");
  }

  function onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if ($("help").open) {
      if (event.key !== "?") return;
      event.preventDefault();
      $("help").close();
      return;
    }
    if (isField(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = keyAct(event);
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** What a key does in this view, or undefined where it is not ours. */
  function keyAct(event) {
    const { key, shiftKey } = event, target = event.target.closest ? event.target : document.body, made = tables[state.view];
    if (/^[1-5]$/.test(key)) return views[key - 1] && (() => show(views[key - 1][0]));
    const search = () => {
      if (!made) show("completions");
      tables[state.view].search.select();
    };
    const always = { "/": search, e: exportCsv, t: nextTheme, "?": () => $("help").showModal(),
      n: () => movePrompt(1), p: () => movePrompt(-1), d: () => go({ diff: !state.diff }) };
    const inCompare = state.view === "compare";
    if (!inCompare && "npd".includes(key)) return undefined;
    if (always[key]) return always[key];
    if (inCompare) {
      const by = { ArrowLeft: -1, ArrowRight: 1, "[": -1, "]": 1 }[key];
      if (!by || (target.matches("input[type=range]") && !shiftKey && key.startsWith("Arrow"))) return undefined;
      return () => (shiftKey || key === "[" || key === "]" ? moveStep(by) : movePlace(by));
    }
    const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[key];
    if (by) return () => moveRow(made, by);
    const row = key === "Enter" && target.closest("tr[data-row]");
    return row ? () => made.open(Number(row.dataset.id)) : undefined;
  }

  // ------------------------------------------------------------------ start

  let shownView = null;

  function render() {
    const { view } = state, made = tables[view];
    for (const [name] of VIEWS) $(name).hidden = name !== view;
    for (const one of $("views").children) {
      if (one.dataset.view === view) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    made?.refresh?.();
    if (made) renderTable(made);
    else renderCompare();
    $("notice").textContent = state.notices.join(" ");
    $("notice").hidden = !state.notices.length;
    const inWords = (pane) => `${pane.title.textContent}, ${pane.verdict.textContent}`;
    tell(made ? made.count.textContent : [parts.left, parts.right].map(inWords).join("; "));
    if (shownView !== null && shownView !== view) {
      // the element that had the focus may be hidden now
      if (made && made.visited) focusRow(made, made.cursor);
      else $("main").focus();
    }
    if (made) made.visited = true;
    shownView = view;
  }

  try {
    prepareLog();
    setTheme(THEMES.includes(stored()) ? stored() : "auto");
    dark.addEventListener("change", () => setTheme(root.dataset.choice));
    buildFrame();
    buildCompare();
    buildTables();
    buildHelp();
    $("message").hidden = true;
    $("app").hidden = false;
    decode(location.hash);
    render();
    addEventListener("hashchange", onAddress);
    addEventListener("popstate", onAddress);
    document.addEventListener("keydown", onKey);
    root.dataset.ready = "true";
  } catch (error) {
    fail(error);
    throw error;
  }
})();
