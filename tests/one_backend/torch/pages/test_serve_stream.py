"""The example server: many streams, each with states of its own."""

import asyncio

import keras
import numpy as np
import pytest
import serve_stream
from support.units import array

pytestmark = pytest.mark.rest


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return serve_stream.untrained_model()


def test_streams_that_come_and_go_keep_to_themselves(model):
    sequences = np.random.default_rng(0).standard_normal((3, 7, 1))
    expected = array(model(sequences.astype("float32")))
    streams = serve_stream.Streams(model, slots=2)

    def send(slot, row, step):
        output = streams.run({slot: sequences[row, step]})[slot]
        np.testing.assert_allclose(output, expected[row, step], atol=1e-5)

    first, second = streams.open(), streams.open()
    assert streams.open() is None
    for step in range(4):
        send(first, 0, step)
    streams.close(first)
    third = streams.open()
    for step in range(7):
        together = {second: sequences[1, step], third: sequences[2, step]}
        outputs = streams.run(together)
        for slot, row in ((second, 1), (third, 2)):
            np.testing.assert_allclose(
                outputs[slot], expected[row, step], atol=1e-5
            )


@pytest.mark.parametrize("line", [b"", b"x", b"1,2", b"nan", b"1e39", b"\xff"])
def test_a_line_that_is_not_a_step_is_refused(line):
    with pytest.raises(ValueError, match="expected 1 finite numbers"):
        serve_stream.parsed(line, 1)


def test_the_load_test_gets_an_answer_to_every_step(capsys):
    rate, middle, high = serve_stream.main(
        # The clients have slots, even where fewer are asked for.
        ["--port", "0", "--clients", "3", "--steps", "4", "--slots", "2"]
    )
    assert rate > 0 and 0 < middle <= high
    assert "3 streams" in capsys.readouterr().out


def test_a_full_server_and_a_wrong_line_get_an_error(model):
    async def talk():
        options = serve_stream.parse(["--port", "0"])
        streams = serve_stream.Streams(model, slots=1)
        ports = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            serve_stream.serve(streams, options, ports.set_result)
        )
        port = await ports
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"1,2\n0.5\n")
        answers = [await reader.readline() for _ in range(2)]
        other, unused = await asyncio.open_connection("127.0.0.1", port)
        answers.append(await other.readline())
        for connection in (writer, unused):
            connection.close()
        task.cancel()
        return answers

    wrong, right, full = asyncio.run(talk())
    assert wrong == b"error: expected 1 finite numbers\n"
    assert len(right.split(b",")) == 3
    assert full == b"error: all streams are taken\n"
