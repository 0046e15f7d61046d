// Runs the script of the status page as a browser does, against a relay: node page.mjs URL POLLS. Prints what the page shows, as JSON.

class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, hidden: false, className: "", parent: null }); }
  get textContent() { return this.children.map(child => child.textContent ?? child).join(""); }
  set textContent(text) { this.children = text === "" ? [] : [String(text)]; }
  get firstChild() { return this.children[0]; }
  get isConnected() { return this.parent === null ? Object.values(byId).includes(this) : this.parent.isConnected; }
  get classList() { return { toggle: (name, on) => { this.attributes[name] = on; } }; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...more) { for (const child of more) { if (child instanceof Element) child.parent = this; this.children.push(child); } }
  replaceChildren(...more) { this.children = []; this.append(...more); }
  remove() { this.parent.children = this.parent.children.filter(child => child !== this); this.parent = null; }
  all(tag) { return this.children.flatMap(child => child instanceof Element ? [...(child.tag === tag ? [child] : []), ...child.all(tag)] : []); }
}

const [url, polls] = [process.argv[2], Number(process.argv[3])];
const byId = {};
globalThis.document = {
  createElement: tag => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  // Only what the page has.
  getElementById: id => page.includes(`id="${id}"`) ? byId[id] ??= new Element(id) : null,
};
const plain = globalThis.fetch, later = globalThis.setTimeout;
globalThis.fetch = (path, options) => plain(new URL(path, url), options);

let left = polls;
globalThis.setTimeout = (poll, wait, ...rest) => {
  if (poll.name !== "poll") return later(poll, wait, ...rest);
  if (--left > 0) return later(poll, 100);
  const cards = byId.lanes?.children ?? [];
  console.log(JSON.stringify({
    up: byId.up?.textContent,
    trouble: byId.trouble.hidden ? null : byId.trouble.textContent,
    lanes: cards.map(card => ({ text: card.textContent, paths: card.all("path").map(path => path.attributes.d) })),
    ports: (byId.ports?.children ?? []).map(row => row.children.map(cell => cell.textContent)),
  }));
  process.exit(0);
};

const page = await (await plain(url)).text();
const script = page.match(/<script>([^]*)<\/script>/)[1];
new Function(script)();
