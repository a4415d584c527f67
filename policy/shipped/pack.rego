# What the packs share. A pack is on where the site has a block for it: pack "naming" {}.
package homestak.packs

# words are those of a setting, separated by spaces.
words(text) := {word | some word in split(text, " "); word != ""}

address(name) := sprintf("%s.%s", [input.site.nodes[name].type, name])

# settings of a pack, by name; undefined where it is off.
settings[name] := object.get(pack, "settings", {}) if some name, pack in input.site.packs

role(node) := object.get(node, "role", null)
