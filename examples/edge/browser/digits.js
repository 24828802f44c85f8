// The model and the sound, without the page.

export const RATE = 8000;
// The model was trained on at most a second.
export const LONGEST = RATE;

// A stream through the ONNX model of a block.
export class Digits {
  static async load(runtime, model) {
    const session = await runtime.InferenceSession.create(model);
    return new Digits(runtime, session);
  }

  constructor(runtime, session) {
    this.runtime = runtime;
    this.session = session;
    [this.sound, ...this.others] = session.inputMetadata;
    this.size = product(this.sound.shape);
    this.reset();
  }

  reset() {
    this.states = this.others.map((given) =>
      this.tensor(new Float32Array(product(given.shape)), given.shape));
  }

  tensor(values, shape) {
    return new this.runtime.Tensor("float32", values, shape);
  }

  // The probabilities after one more block of `size` samples.
  async read(block) {
    const feeds = { [this.sound.name]: this.tensor(block, this.sound.shape) };
    this.others.forEach((given, place) => {
      feeds[given.name] = this.states[place];
    });
    const outputs = await this.session.run(feeds);
    const [first, ...after] = this.session.outputNames;
    this.states = after.map((name) => outputs[name]);
    return outputs[first].data;
  }

  // The probabilities after each block of a sound, from the beginning.
  async *answers(sound) {
    this.reset();
    for (let end = this.size; end <= sound.length; end += this.size) {
      yield await this.read(sound.slice(end - this.size, end));
    }
  }
}

function product(numbers) {
  return numbers.reduce((total, number) => total * number, 1);
}

// Mean 0 and deviation 1, as in training. The samples are between -1 and 1:
// what is quieter than one step of 16 bits stays as it is.
export function equallyLoud(sound) {
  const mean = average(sound, (value) => value);
  const power = average(sound, (value) => (value - mean) ** 2);
  const level = Math.max(Math.sqrt(power), 2 ** -15);
  return sound.map((value) => (value - mean) / level);
}

export function average(values, of) {
  let total = 0;
  for (const value of values) total += of(value);
  return total / values.length;
}

// The samples of a WAV file of 16 bits, one channel and 8 kHz, or null: what
// needs no resampling is read without the browser's.
export function plainSamples(buffer) {
  const view = new DataView(buffer);
  const text = (at) => String.fromCharCode(...new Uint8Array(buffer, at, 4));
  if (buffer.byteLength < 44 || text(0) !== "RIFF" || text(8) !== "WAVE") {
    return null;
  }
  let isPlain = false;
  for (let at = 12; at + 8 <= buffer.byteLength;) {
    const size = view.getUint32(at + 4, true);
    const end = Math.min(at + 8 + size, buffer.byteLength);
    if (text(at) === "fmt ") {
      isPlain = view.getUint16(at + 8, true) === 1 // PCM
        && view.getUint16(at + 10, true) === 1
        && view.getUint32(at + 12, true) === RATE
        && view.getUint16(at + 22, true) === 16;
    }
    if (text(at) === "data") {
      if (!isPlain) return null;
      const count = Math.floor((end - at - 8) / 2);
      return Float32Array.from({ length: count }, (_, place) =>
        view.getInt16(at + 8 + 2 * place, true) / 32768);
    }
    at += 8 + size + (size % 2);
  }
  return null;
}

// Samples at another rate, as they come, at `RATE`: each is a sum of those near
// it, weighted by a sinc in a window, which keeps what is below half of `RATE`.
export class Resampler {
  constructor(rate) {
    this.step = rate / RATE;
    this.reach = Math.ceil(16 * this.step);
    this.waiting = new Float32Array(this.reach);
    this.place = this.reach;
  }

  read(samples) {
    this.waiting = joined([this.waiting, samples]);
    const found = [];
    while (this.place + this.reach < this.waiting.length) {
      found.push(this.at(this.place));
      this.place += this.step;
    }
    const done = Math.floor(this.place) - this.reach;
    this.waiting = this.waiting.slice(done);
    this.place -= done;
    return found;
  }

  at(place) {
    let total = 0;
    const first = Math.ceil(place - this.reach);
    for (let near = first; near < place + this.reach; near++) {
      const turn = Math.PI * (near - place);
      const sinc = turn ? Math.sin(turn / this.step) / turn : 1 / this.step;
      const window = Math.cos(turn / this.reach / 2) ** 2;
      total += this.waiting[near] * sinc * window;
    }
    return total;
  }
}

// Finds words in a stream: a word begins with a block that is louder than the
// noise, and ends after a quarter of a second that is not, or after `LONGEST`.
export class Words {
  constructor(size) {
    this.size = size;
    this.noise = 0.005;
    this.before = [];
    this.word = null;
  }

  // What a block does: {begins, word, ended}.
  hear(block) {
    const level = Math.sqrt(average(block, (value) => value ** 2));
    const isLoud = level > 3 * this.noise;
    if (!this.word) {
      if (!isLoud) {
        this.noise = Math.max(0.95 * this.noise + 0.05 * level, 0.001);
        // A word begins a little before it is loud.
        this.before = [...this.before, block].slice(-4);
        return {};
      }
      this.word = [...this.before, block];
      this.before = [];
      this.quiet = 0;
      return { begins: this.word };
    }
    this.word.push(block);
    this.quiet = isLoud ? 0 : this.quiet + this.size;
    const length = this.word.length * this.size;
    if (this.quiet < RATE / 4 && length < LONGEST) return { goesOn: block };
    const word = joined(this.word.slice(0, LONGEST / this.size));
    this.word = null;
    return { ends: word.slice(0, word.length - this.quiet) };
  }
}

export function joined(blocks) {
  return Float32Array.from(blocks.flatMap((block) => [...block]));
}
