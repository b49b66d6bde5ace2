// A description of elements, and a patch that changes only what differs: nothing flickers, focus and
// scrolling stay. Text becomes text nodes and never markup, so no name can do harm.

/**
 * Describe an element. Properties: `class`, `key`, `on` (events), `style` (custom properties), attributes, and
 * `initially`: attributes that are the user's to change once the element is there.
 */
export function h(tag, properties, ...children) {
  return { tag, properties: properties || {}, children: children.flat(Infinity).filter(isShown) };
}

const isShown = (child) => child !== null && child !== undefined && child !== false;
const SVG = "http://www.w3.org/2000/svg";

/** Make the children of `parent` what the descriptions say. */
export function patch(parent, ...wanted) {
  const children = wanted.flat(Infinity).filter(isShown);
  const keyed = new Map();
  for (const node of parent.childNodes) if (node.key !== undefined) keyed.set(node.key, node);
  let present = parent.firstChild;
  for (const child of children) {
    const key = child.properties?.key;
    let node = key === undefined ? present : keyed.get(key);
    if (node && fits(node, child)) {
      if (node === present) present = present.nextSibling;
      else parent.insertBefore(node, present);
    } else {
      node = create(parent, child);
      parent.insertBefore(node, present);
    }
    update(node, child);
  }
  while (present) {
    const next = present.nextSibling;
    present.remove();
    present = next;
  }
}

function fits(node, child) {
  if (child.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node.localName === child.tag && node.key === child.properties.key;
}

function create(parent, child) {
  if (child.tag === undefined) return document.createTextNode("");
  const inSvg = child.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const node = inSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  if (child.properties.key !== undefined) node.key = child.properties.key;
  for (const [name, value] of Object.entries(child.properties.initially || {})) node.setAttribute(name, value);
  return node;
}

function update(node, child) {
  if (child.tag === undefined) {
    const text = String(child);
    if (node.data !== text) node.data = text;
    return;
  }
  const { key, initially, on = {}, style = {}, value, ...attributes } = child.properties;
  setAttributes(node, attributes);
  setStyle(node, style);
  listen(node, on);
  patch(node, child.children);
  if (value !== undefined && node.value !== value && document.activeElement !== node) node.value = value;
}

function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const gone = value === null || value === undefined || value === false;
    if (gone) node.removeAttribute(name);
    else {
      const text = value === true ? "" : String(value);
      if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
  }
  for (const name of node.attributeNames || []) if (!(name in attributes)) node.removeAttribute(name);
  node.attributeNames = Object.keys(attributes);
}

function setStyle(node, style) {
  const past = node.styleOf || {};
  for (const name of Object.keys(past)) if (!(name in style)) node.style.removeProperty(name);
  for (const [name, value] of Object.entries(style)) {
    if (past[name] !== String(value)) node.style.setProperty(name, String(value));
  }
  node.styleOf = Object.fromEntries(Object.entries(style).map(([name, value]) => [name, String(value)]));
}

function listen(node, on) {
  const past = node.handlers || {};
  for (const name of Object.keys(past)) if (!(name in on)) node.removeEventListener(name, past[name]);
  for (const [name, handler] of Object.entries(on)) {
    if (past[name] === handler) continue;
    if (past[name]) node.removeEventListener(name, past[name]);
    node.addEventListener(name, handler);
  }
  node.handlers = on;
}
