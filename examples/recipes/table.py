"""The recipes: models, data and training as data, and what the papers report.

The tables import no framework, so that the list can be printed at once.
"""

from recipes import memory_table
from recipes import pixels_table
from recipes import speech_table
from recipes import tokens_table

RECIPES = {
    **speech_table.RECIPES,
    **memory_table.RECIPES,
    **pixels_table.RECIPES,
    **tokens_table.RECIPES,
}
