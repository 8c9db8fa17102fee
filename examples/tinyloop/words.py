"""The words that tasks are made of. Each is one token of the example's model, so that it can be copied whole.

Rules of this module: none of them is a word of a harness's own prompt or of a shell command, none is part of another
one, and all are plain ASCII, so that the model sees a task's words wherever they stand.
"""

_NAMES = """
acorn almond antler aphid badger bamboo banjo basalt beetle birch bison bramble bugle cactus camel canyon cashew cedar
cicada clover cobra comet condor coyote cricket crocus dahlia daisy dingo dolphin donkey dune falcon fennel ferret fjord
flamingo fossil fungus gazelle gecko geyser ginger glacier gopher granite grouse hamster harbor hazel
"""
_CONTENTS = """
heron hickory hornet iguana indigo iris jackal jaguar jasmine juniper kelp kettle kiwi koala lagoon larch lemur lentil
lilac llama lobster lotus lupine magpie mango maple marlin meadow mimosa minnow mollusk moose mulberry mustard nectar
nettle newt nutmeg ocelot olive onyx orchid osprey otter oyster panda papaya parsley peanut pebble
"""
NAMES = tuple(_NAMES.split())
"""Of files and folders."""
CONTENTS = tuple(_CONTENTS.split())
"""Of what is written into them."""
