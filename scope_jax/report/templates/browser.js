"use strict";
// The episode browser. Texts of a run enter the page only as text nodes, so that nothing in them is markup or script.
// Data: an index of all episodes, and chunks of episodes that are unpacked when one of theirs is shown or searched.
(async () => {
  const HEAD = 90, ROWS = 25, KEPT = 24, MOST = 32; // characters of a beginning; episodes on a list page; chunks in memory; columns of a group
  const place = document.getElementById("browser");
  const waiting = new Map(), cache = new Map();
  window.deliver = (number, text) => waiting.get(number)(text);

  // ------------------------------------------------------------------------------------------------------- data
  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  const parsed = new Promise((done) => {
    if (document.readyState !== "loading") done(); else document.addEventListener("DOMContentLoaded", () => done());
  });

  async function packed(number) {
    await parsed; // chunks within the page come after this script
    const inside = document.getElementById(`chunk-${number}`);
    if (inside) return inside.textContent;
    return new Promise((done, fail) => {
      waiting.set(number, done);
      const script = document.createElement("script"); // fetch() does not read files beside a page opened from disk
      script.src = `episodes/${place.dataset.stamp}-${number}.js`;
      script.onload = () => script.remove();
      script.onerror = () => fail(new Error(`${script.src} is missing; make the report again.`));
      document.head.append(script);
    });
  }

  const index = await unpack(document.getElementById("episodes").textContent);
  const total = index.step.length;

  function chunkOf(number) {
    let low = 0, high = index.starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (index.starts[middle] <= number) low = middle; else high = middle;
    }
    return low;
  }

  function chunk(number) {
    if (!cache.has(number)) {
      cache.set(number, packed(number).then(unpack));
      if (cache.size > KEPT) cache.delete(cache.keys().next().value);
    }
    return cache.get(number);
  }

  const episode = async (number) => (await chunk(chunkOf(number)))[number - index.starts[chunkOf(number)]];
  const role = (number) => index.roles[index.role[number]];
  const exam = (number) => role(number).startsWith("exam ");
  const group = (number) => index.groups[index.group[number]];
  const reason = (number) => index.reasons[index.reason[number]];

  // ------------------------------------------------------------------------------------------------------ pieces
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null).map((child) => child instanceof Node ? child : String(child)));
    return node;
  }

  const shown = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 1);
  const items = (value) => make("pre", {}, Array.isArray(value) ? value.map((item) => typeof item === "string" ? item : JSON.stringify(item)).join("\n") : shown(value));
  const number3 = (value) => value === null ? "not finite" : String(Number(value.toPrecision(3)));
  const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
  const fold = (summary, ...inner) => make("details", {}, make("summary", {}, summary), ...inner);
  const words = (text) => make("pre", {}, shown(text).trim());
  const button = (label, act, attributes = {}) => make("button", { type: "button", onclick: act, ...attributes }, label);

  // ------------------------------------------------------------------------------------------- state in the address
  const NAMES = ["from", "to", "role", "low", "high", "reason", "q", "page", "open", "group", "colour"];
  let state = {}, found = null, searching = 0; // found: set of episodes with the text, null if none is searched

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    state = Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
  }

  function go(changes) {
    const next = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...state, ...changes })) if (value !== "") next.set(name, value);
    if (`#${next}` === location.hash) show(); else location.hash = next;
  }

  function wanted(number) {
    const reward = index.reward[number], least = state.low === "" ? null : Number(state.low);
    const most = state.high === "" ? null : Number(state.high), why = reason(number);
    return (state.from === "" || index.step[number] >= Number(state.from)) &&
      (state.to === "" || index.step[number] <= Number(state.to)) &&
      (state.role === "" || role(number) === state.role) &&
      (least === null || (reward !== null && reward >= least)) && (most === null || (reward !== null && reward <= most)) &&
      (state.reason === "" || (state.reason === "any" ? why !== "" : state.reason === "none" ? why === "" : `=${why}` === state.reason));
  }

  const newest = Array.from({ length: total }, (_, number) => number).sort((a, b) => index.step[b] - index.step[a] || a - b);
  const filtered = () => newest.filter(wanted);

  async function search(text, numbers) {
    const mine = ++searching, needle = text.toLowerCase();
    found = text === "" ? null : new Set();
    if (text === "") return list();
    let seen = 0, last = performance.now();
    for (const number of numbers) {
      const told = strings(await episode(number));
      if (mine !== searching) return; // another search has begun
      if (told.some((part) => part.toLowerCase().includes(needle))) found.add(number);
      seen += 1;
      if (performance.now() - last > 200) {
        last = performance.now();
        list(`searched ${counted(seen, "episode")} of ${numbers.length.toLocaleString("en")}`);
        await new Promise((later) => setTimeout(later));
      }
    }
    list();
  }

  function strings(value) {
    if (typeof value === "string") return [value];
    if (value === null || typeof value !== "object") return [];
    return Object.entries(value).flatMap(([name, inner]) => name === "tokens" ? [] : strings(inner));
  }

  // -------------------------------------------------------------------------------------------------------- list
  const status = make("p", { class: "faint", role: "status" }), table = make("div", { class: "scroll" });
  const pages = make("p", { class: "pages" }), detail = make("div", { id: "shown" });

  function list(progress = "") {
    const numbers = filtered().filter((number) => found === null || found.has(number));
    const last = Math.max(0, Math.ceil(numbers.length / ROWS) - 1), page = Math.min(Number(state.page) || 0, last);
    status.textContent = `${counted(numbers.length, "episode")} of ${total.toLocaleString("en")}${progress && ` · ${progress}`}`;
    const titles = ["step", "role", "group", "reward", "advantage", "tokens", "rejected", "begins with"];
    const numeric = new Set(["step", "reward", "advantage", "tokens"]);
    const rows = numbers.slice(page * ROWS, (page + 1) * ROWS).map(line);
    table.replaceChildren(make("table", { class: "episodes" },
      make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { class: numeric.has(title) ? "n" : "" }, title)))),
      make("tbody", {}, ...rows)));
    pages.replaceChildren(
      button("previous", () => go({ page: page - 1 || "" }), { disabled: page === 0 }),
      ` page ${page + 1} of ${last + 1} `,
      button("next", () => go({ page: page + 1 }), { disabled: page === last }));
  }

  function line(number) {
    const head = make("td", { class: "head faint" }, "…");
    episode(number).then((own) => { head.textContent = beginning(own); }, (error) => { head.textContent = error.message; });
    const cell = (value) => make("td", { class: "n" }, value);
    const advantage = index.advantage[number];
    const open = make("a", { href: link({ open: number, group: "" }) }, index.step[number]);
    return make("tr", { class: String(number) === state.open ? "open" : "" },
      make("td", { class: "n" }, open), make("td", {}, role(number)),
      make("td", {}, make("a", { href: link({ group: number, open: "" }) }, group(number))),
      cell(number3(index.reward[number])), cell(advantage === null ? "" : number3(advantage)),
      cell(index.sampled[number].toLocaleString("en")), make("td", { class: "bad" }, reason(number)), head);
  }

  function link(changes) {
    const next = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...state, ...changes })) if (value !== "") next.set(name, value);
    return `#${next}`;
  }

  function beginning(own) {
    const { text } = own, first = (text.turns ?? []).find((turn) => turn.kind === "sampled");
    const said = shown(text.question ?? text.task ?? text.query ?? first?.text ?? text.setting ?? "").replace(/\s+/g, " ").trim();
    return said.length > HEAD ? `${said.slice(0, HEAD)}…` : said;
  }

  // ---------------------------------------------------------------------------------------------------- one episode
  const COLOURS = [["", "plain"], ["logprob", "log-prob"], ["entropy", "entropy"], ["advantage", "advantage"]];

  function conversation(number, own) {
    if (own.tokens && state.colour) return own.tokens.map((row) => coloured(row, index.advantage[number] ?? 0));
    return (own.text.turns ?? []).map((turn) => turn.kind === "observation"
      ? make("div", { class: "turn observation" }, fold(`the tool answered: ${counted(turn.text.length, "character")}`, words(turn.text)))
      : make("div", { class: "turn" }, make("small", {}, role(number)), words(turn.text)));
  }

  function coloured(row, advantage) {
    const parts = [];
    for (let at = 0; at < row.pieces.length;) {
      const own = row.logprobs[at] !== null, nodes = [];
      for (; at < row.pieces.length && (row.logprobs[at] !== null) === own; at += 1) nodes.push(token(row, at, advantage));
      if (own) parts.push(make("pre", { class: "tokens" }, ...nodes));
      else parts.push(fold(`read: ${counted(nodes.length, "token")}`, make("pre", { class: "tokens" }, ...nodes)));
    }
    return make("div", { class: "turn" }, ...parts);
  }

  function token(row, at, advantage) {
    const logprob = row.logprobs[at];
    if (logprob === null) return document.createTextNode(row.pieces[at]);
    const entropy = row.entropies?.[at] ?? 0, measured = row.entropies ? `, entropy ${entropy.toFixed(2)}` : "";
    const title = `log-prob ${logprob.toFixed(2)}, probability ${number3(Math.exp(logprob))}${measured}`;
    const node = make("span", { title }, row.pieces[at]);
    const value = state.colour === "logprob" ? -Math.min(5, -logprob) / 5
      : state.colour === "entropy" ? -Math.min(3, entropy) / 3 : Math.max(-1, Math.min(1, advantage / 2));
    if (value !== 0) node.style.background = `rgb(${value < 0 ? "214 94 0" : "0 114 178"} / ${(0.6 * Math.abs(value)).toFixed(2)})`;
    return node;
  }

  function palette(own) {
    if (!own.tokens) return make("p", { class: "faint" }, "Tokens are not recorded; log.tokens = true records them with their log-probs.");
    const legend = {
      "": "", logprob: "the less probable a token was when it was sampled, the darker (log-prob 0 to −5)",
      entropy: own.tokens[0].entropies ? "the less certain the policy was of the token, the darker (entropy 0 to 3 nats)"
        : "entropies are not recorded; log.entropies = true records them",
      advantage: "all sampled tokens share the episode's advantage: blue above zero, orange below",
    };
    return make("p", { class: "faint" }, "tokens: ", ...COLOURS.map(([name, label]) =>
      button(label, () => go({ colour: name }), { "aria-pressed": String(state.colour === name) })), ` ${legend[state.colour] ?? ""}`);
  }

  function judged(judgement) {
    const read = judgement.read === null ? "nothing that could be read" : shown(judgement.read);
    return make("div", { class: "turn observation" },
      make("small", {}, `${judgement.job.replaceAll("_", " ")}${judgement.about && `: ${judgement.about}`} → ${read}`),
      ...judgement.replies.map((reply) => words(reply.refused || reply.text || "(no words)")));
  }

  function facts(number) {
    const advantage = index.advantage[number];
    if (exam(number)) return [];
    return [make("span", {}, `reward ${number3(index.reward[number])}`),
      advantage === null ? null : make("span", {}, `advantage ${number3(advantage)}`),
      reason(number) ? make("span", { class: "bad" }, `rejected: ${reason(number)}`) : null,
      index.trained[number] ? null : make("span", { class: "faint" }, "not trained on")];
  }

  function article(number, own) {
    const told = Object.entries(own.text).filter(([name, value]) =>
      !["turns", "prompt", "rejected"].includes(name) && value !== null && value !== "");
    return make("article", {},
      make("header", {}, make("b", {}, role(number)), make("span", {}, `step ${index.step[number]}`),
        make("a", { href: link({ group: number, open: "" }) }, `group ${group(number)}`), ...facts(number),
        ...Object.entries(own.parts).map(([name, value]) => make("span", { class: "faint" }, `${name} ${typeof value === "number" ? number3(value) : shown(value)}`)),
        exam(number) ? null : make("span", { class: "faint" }, `${own.sampled} of ${own.all} tokens sampled`)),
      make("div", {}, exam(number) ? null : palette(own),
        ...told.map(([name, value]) => typeof value === "object"
          ? make("div", { class: "told" }, make("b", {}, name.replaceAll("_", " ")), items(value))
          : make("p", { class: "told" }, make("b", {}, name.replaceAll("_", " ")), shown(value))),
        own.text.prompt === undefined ? null : fold("prompt", words(own.text.prompt)),
        ...conversation(number, own),
        own.judgements ? fold(`what the judge said (${own.judgements.length})`, ...own.judgements.map(judged)) : null));
  }

  async function openOne(number) {
    const view = article(number, await episode(number));
    const near = (by) => { const numbers = filtered().filter((n) => found === null || found.has(n)); return numbers[numbers.indexOf(number) + by]; };
    const step = (label, by) => button(label, () => go({ open: near(by) }), { disabled: near(by) === undefined });
    return [make("p", { class: "pages" }, step("previous episode", -1), " ", step("next episode", 1), " ", button("close", () => go({ open: "" }))), view];
  }

  // --------------------------------------------------------------------------------------------------------- a group
  async function openGroup(number) {
    const same = [];
    for (let other = 0; other < total; other += 1)
      if (index.step[other] === index.step[number] && index.group[other] === index.group[number] && index.role[other] === index.role[number]) same.push(other);
    const size = same.length;
    same.splice(MOST);
    const rewards = same.map((other) => index.reward[other] ?? 0);
    const low = Math.min(0, ...rewards), span = Math.max(0, ...rewards) - low || 1;
    const bars = make("div", { class: "bars" });
    const columns = make("div", { class: "columns" });
    for (const [at, other] of same.entries()) {
      const bar = make("i", {});
      bar.style.left = `${100 * (Math.min(0, rewards[at]) - low) / span}%`;
      bar.style.width = `${100 * Math.abs(rewards[at]) / span}%`;
      bars.append(make("a", { href: link({ open: other, group: "" }) }, `#${at + 1}`), make("div", { class: "bar" }, bar),
        make("span", {}, number3(index.reward[other])), make("span", { class: "faint" }, index.advantage[other] === null ? "" : `advantage ${number3(index.advantage[other])}`),
        make("span", { class: "bad" }, reason(other)));
      const own = await episode(other);
      columns.append(make("section", {}, make("h4", {}, make("a", { href: link({ open: other, group: "" }) }, `#${at + 1}`), ` reward ${number3(index.reward[other])}`),
        ...conversation(other, own)));
    }
    const first = await episode(same[0]);
    return [make("p", { class: "pages" }, button("close", () => go({ group: "" }))),
      make("article", {}, make("header", {}, make("b", {}, role(number)), make("span", {}, `group ${group(number)}`),
        make("span", {}, `step ${index.step[number]}`), make("span", {}, counted(size, "episode") + (size > MOST ? `, the first ${MOST}` : ""))),
      make("div", {}, first.text.prompt === undefined ? null : fold("prompt of the first", words(first.text.prompt)), bars, columns))];
  }

  // ------------------------------------------------------------------------------------------------------- controls
  function controls() {
    const choice = (name, label, options) => make("label", {}, label, make("select", { name, onchange: (event) => go({ [name]: event.target.value, page: "", open: "", group: "" }) },
      ...options.map(([value, text]) => make("option", { value, selected: state[name] === value }, text))));
    const field = (name, label, type, size) => make("label", {}, label, make("input", {
      name, type, step: "any", value: state[name], class: size, onchange: (event) => go({ [name]: event.target.value.trim(), page: "", open: "", group: "" }) }));
    const reasons = index.reasons.filter((why) => why !== "").map((why) => [`=${why}`, why]);
    return make("form", { onsubmit: (event) => event.preventDefault() },
      field("from", "steps from", "number", "short"), field("to", "to", "number", "short"),
      choice("role", "role", [["", "all"], ...index.roles.map((name) => [name, name])]),
      field("low", "reward from", "number", "short"), field("high", "to", "number", "short"),
      choice("reason", "rejected", [["", "all"], ["none", "not rejected"], ["any", "for any reason"], ...reasons]),
      field("q", "text", "search", "long"), button("clear", () => { location.hash = ""; }));
  }

  let before = null, opened = "/"; // what the text was searched in; what is shown below the list
  async function show() {
    read();
    place.replaceChildren(controls(), status, table, pages, detail);
    const asked = JSON.stringify(["from", "to", "role", "low", "high", "reason", "q"].map((name) => state[name]));
    if (asked !== before) {
      before = asked;
      search(state.q, filtered());
    } else list();
    const chosen = state.open !== "" ? Number(state.open) : state.group !== "" ? Number(state.group) : NaN;
    if (!(chosen >= 0 && chosen < total)) {
      opened = "/";
      return detail.replaceChildren();
    }
    try {
      const key = `${state.open}/${state.group}`;
      detail.replaceChildren(...await (state.open !== "" ? openOne(chosen) : openGroup(chosen)));
      if (key !== opened) detail.scrollIntoView({ block: "nearest" });
      opened = key;
    } catch (error) {
      detail.replaceChildren(make("p", { class: "problem" }, error.message));
    }
  }

  window.addEventListener("hashchange", show);
  await show();

  if (place.dataset.live) { // served by scope-jax report --watch
    const version = async () => (await fetch(location.pathname, { method: "HEAD", cache: "no-store" })).headers.get("etag");
    const mine = await version();
    setInterval(() => version().then((now) => { if (now !== mine) location.reload(); }, () => {}), 3000);
  }
})();
