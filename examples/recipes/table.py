"""The recipes: models, data and training as data, and what the papers report.

The tables import no framework, so that the list can be printed at once.
"""

from recipes import memory_table
from recipes import pictures_table
from recipes import pixels_table
from recipes import speech_table
from recipes import tokens_table

TABLES = (
    speech_table,
    memory_table,
    pixels_table,
    pictures_table,
    tokens_table,
)
RECIPES = {name: r for table in TABLES for name, r in table.RECIPES.items()}
# What each section of the page is about.
ABOUT = {name: text for table in TABLES for name, text in table.ABOUT.items()}
