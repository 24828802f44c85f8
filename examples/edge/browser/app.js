// The page: files and the microphone, and what the model makes of them.

import * as runtime from "./ort.wasm.min.mjs";
import {
  Digits, LONGEST, RATE, Resampler, Words, average, equallyLoud, joined,
  plainSamples,
} from "./digits.js";

const find = (name) => document.getElementById(name);
const times = [];
let digits;
// What the pictures show: a sound, and the probabilities after its blocks.
let shown = { sound: new Float32Array(), history: [] };
let listening = null;

async function start() {
  // One thread needs no special headers of the server.
  runtime.env.wasm.numThreads = 1;
  const model = new URL("digits.onnx", import.meta.url).href;
  digits = await Digits.load(runtime, model);
  for (let digit = 0; digit < 10; digit++) {
    const item = document.createElement("li");
    item.append(digit);
    find("bars").append(item);
  }
  find("file").addEventListener("change", openFile);
  find("microphone").addEventListener("click", toggleMicrophone);
  addEventListener("resize", draw);
  // The site's switch, and the system's.
  new MutationObserver(draw).observe(document.body, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  setReady(true);
  say("Ready.");
}

function say(text) {
  find("state").textContent = text;
}

function setReady(isReady) {
  find("file").disabled = find("microphone").disabled = !isReady;
}

// Files.

async function openFile(event) {
  const [file] = event.target.files;
  if (!file) return;
  setReady(false);
  try {
    const sound = await decoded(await file.arrayBuffer());
    await recognise(equallyLoud(sound.slice(0, LONGEST)), file.name);
  } catch (error) {
    say(`${file.name} cannot be read: ${error.message}`);
  }
  event.target.value = "";
  setReady(true);
}

// The first channels' mean, at 8 kHz: the context of that rate resamples.
async function decoded(buffer) {
  const plain = plainSamples(buffer);
  if (plain) return plain;
  const context = new OfflineAudioContext(1, 1, RATE);
  const audio = await context.decodeAudioData(buffer);
  const channels = Array.from(
    { length: audio.numberOfChannels }, (_, place) => audio.getChannelData(place)
  );
  return channels[0].map((_, at) => average(channels, (part) => part[at]));
}

// Read a sound at the speed at which it was spoken, and show the answers.
async function recognise(sound, name) {
  say(`Reading ${name}.`);
  shown = { sound, history: [] };
  const beginning = performance.now();
  let now = performance.now();
  for await (const probabilities of digits.answers(sound)) {
    keepTime(performance.now() - now);
    shown.history.push([...probabilities]);
    const due = beginning + 1000 * shown.history.length * digits.size / RATE;
    if (due > performance.now()) {
      show();
      await new Promise((go) => setTimeout(go, due - performance.now()));
    }
    now = performance.now();
  }
  if (!shown.history.length) throw new Error("it is shorter than a block");
  show();
  say(`${name}: ${best(shown.history.at(-1))}`);
}

function best(probabilities) {
  return probabilities.indexOf(Math.max(...probabilities));
}

function keepTime(milliseconds) {
  times.push(milliseconds);
  if (times.length > 500) times.shift();
}

// The microphone.

async function toggleMicrophone() {
  if (listening) {
    await listening();
    return;
  }
  find("microphone").disabled = true;
  try {
    await listen();
  } catch (error) {
    say(`No microphone: ${error.message}`);
  }
  find("microphone").disabled = false;
}

async function listen() {
  if (!isSecureContext) throw new Error("the page has to come by https");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  // Not at the model's rate: Firefox does not resample a microphone.
  const context = new AudioContext();
  const recorder = new URL("recorder.js", import.meta.url).href;
  await context.audioWorklet.addModule(recorder);
  const node = new AudioWorkletNode(context, "recorder");
  const resampler = new Resampler(context.sampleRate);
  const hear = hearing();
  node.port.onmessage = (event) => hear(resampler.read(event.data));
  context.createMediaStreamSource(stream).connect(node);
  find("file").disabled = true;
  find("microphone").textContent = "Stop";
  say("Say a digit.");
  listening = async () => {
    stream.getTracks().forEach((track) => track.stop());
    await context.close();
    listening = null;
    find("file").disabled = false;
    find("microphone").textContent = "Listen to the microphone";
    say("Ready.");
  };
}

// A function of samples as they come. While a word goes on, it is as loud as
// the last one, or as it has been so far; once it has ended, its loudness is
// known, and the model reads it again, as in training.
function hearing() {
  const words = new Words(digits.size);
  let waiting = [];
  let level = null;
  let work = Promise.resolve();

  async function take(block) {
    const { begins, goesOn, ends } = words.hear(block);
    if (begins) {
      digits.reset();
      shown = { sound: new Float32Array(), history: [] };
    }
    for (const part of begins ?? (goesOn ? [goesOn] : [])) {
      shown.sound = joined([shown.sound, part]);
      const own = Math.sqrt(average(shown.sound, (value) => value ** 2));
      const scale = level ?? Math.max(own, 2 ** -15);
      const now = performance.now();
      const probabilities = await digits.read(part.map((x) => x / scale));
      keepTime(performance.now() - now);
      shown.history.push([...probabilities]);
    }
    if (begins || goesOn) show();
    if (!ends || ends.length < digits.size) return;
    level = Math.sqrt(average(ends, (value) => value ** 2));
    const history = [];
    for await (const probabilities of digits.answers(equallyLoud(ends))) {
      history.push([...probabilities]);
    }
    shown = { sound: ends, history };
    show();
    say(`Heard ${best(history.at(-1))}.`);
  }

  return (samples) => {
    waiting.push(...samples);
    while (waiting.length >= digits.size) {
      const block = Float32Array.from(waiting.splice(0, digits.size));
      // One after another: each reads the states that the last one left.
      work = work.then(() => take(block));
    }
  };
}

// The pictures.

function show() {
  const last = shown.history.at(-1);
  find("answer").textContent = best(last);
  document.querySelectorAll("#bars li").forEach((item, digit) => {
    item.style.setProperty("--share", last[digit]);
    item.ariaLabel = `${digit}: ${last[digit].toFixed(2)}`;
  });
  const seconds = shown.history.length * digits.size / RATE;
  find("length").textContent = seconds.toFixed(2);
  const sorted = [...times].sort((one, other) => one - other);
  find("time").textContent = sorted[sorted.length >> 1].toFixed(2);
  draw();
}

function draw() {
  const count = Math.max(shown.sound.length, 1);
  const loudest = shown.sound.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  picture("waveform", (line) => {
    line(shown.sound, count, (value) => 0.5 - 0.5 * value / (loudest || 1), 0);
  });
  picture("probabilities", (line) => {
    const blocks = Math.ceil(count / (digits?.size ?? 1));
    const chosen = shown.history.length ? best(shown.history.at(-1)) : 0;
    for (let digit = 0; digit < 10; digit++) {
      const values = shown.history.map((row) => row[digit]);
      line(values, blocks, (value) => 1 - value, digit !== chosen);
    }
  });
}

// Draw on a canvas by a function of `line(values, count, height, isQuiet)`.
function picture(name, paint) {
  const canvas = find(name);
  const style = getComputedStyle(canvas);
  const width = canvas.width = canvas.clientWidth * devicePixelRatio;
  const height = canvas.height = canvas.clientHeight * devicePixelRatio;
  const context = canvas.getContext("2d");
  const margin = 2 * devicePixelRatio;
  paint((values, count, place, isQuiet) => {
    context.beginPath();
    values.forEach((value, at) => {
      const y = margin + place(value) * (height - 2 * margin);
      context.lineTo((at + 0.5) / count * width, y);
    });
    const color = isQuiet ? "--line" : "--strong";
    context.strokeStyle = style.getPropertyValue(color);
    context.lineWidth = (isQuiet ? 1 : 1.5) * devicePixelRatio;
    context.stroke();
  });
}

start().catch((error) => say(`The model does not run here: ${error.message}`));
