# METADATA
# title: Pinned images
# description: Every image that is downloaded has a checksum.
# scope: package
# schemas:
#   - input: schema.pass
package homestak.packs.images

import data.homestak.packs

# METADATA
# title: A downloaded image has a checksum
# scope: rule
deny contains {
	"rule": "image-pinned",
	"message": sprintf("image %s has no checksum, so what is installed may change", [name]),
	"address": sprintf("image.%s", [name]),
	"fix": "Write its checksum, as the publisher lists it.",
} if {
	packs.on("images", "image-pinned")
	some name, image in object.get(input.site, "images", {})
	is_string(image.url)
	not is_string(image.checksum)
}
