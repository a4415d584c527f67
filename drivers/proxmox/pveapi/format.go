package pveapi

import (
	"errors"
	"strings"
	"sync"
)

// Formats are rules for strings that the table names but does not define; they
// stand in Proxmox's Perl code, where a name is bound to a function or to the
// members of a property string (register_format in PVE/JSONSchema.pm). The
// files format_*.go hold them in the same two shapes, plus a third one for the
// many functions that are a single regular expression.

// shape is a format that is one regular expression: a value that does not match
// is refused with the message, in which %s stands for the value.
type shape struct {
	matches func(word string) bool
	message string
}

// formats are all formats of single strings, by name. A function gets the
// version of the host (empty: the newest) and the string.
var formats = sync.OnceValue(func() map[string]func(version, word string) error {
	all := map[string]func(version, word string) error{}
	for _, shapes := range []map[string]shape{netShapes(), guestShapes(), idShapes()} {
		for name, s := range shapes {
			all[name] = s.check
		}
	}
	for _, functions := range []map[string]func(word string) error{netFormats(), guestFormats(), idFormats(), sdnFormats()} {
		for name, f := range functions {
			all[name] = func(_, word string) error { return f(word) }
		}
	}
	all["pve-storage-id"], all["acme-plugin-id"] = checkSimpleID("storage"), checkSimpleID("ACME plugin")
	all["storage-pair"], all["bridge-pair"] = checkPair(all["pve-storage-id"]), checkPair(all["pve-bridge-id"])
	all["pve-priv"] = checkPrivilege
	all["pve-storage-zfs-blocksize"] = checkZFSBlockSize
	return all
})

func (s shape) check(_, word string) error {
	if s.matches(word) {
		return nil
	}
	return refuse(s.message, word)
}

// refuse is the error of a format: message with %s replaced.
func refuse(message, word string) error {
	return died(strings.ReplaceAll(message, "%s", word))
}

// died is an error with PVE's text. Perl's messages end with a line break, or Perl
// adds where they come from; PVE passes the line break on to its clients.
func died(message string) error { return errors.New(message + "\n") }

// checkFormat verifies a string by the format of v, as check_format in
// PVE/JSONSchema.pm: a name that ends with -list means a list of any length, one
// with -opt that the empty string (and 0) passes. A format unknown here passes;
// the tests keep a list of these.
func (c *verifier) checkFormat(v *Value, word, path string) error {
	members, validate := v.members()
	if members != nil {
		parsed, err := c.parseProperty(members, word, path)
		if err == nil && validate != nil {
			err = validate(c.version, parsed)
		}
		return err
	}
	if check, ok := formats()[v.Format]; ok {
		return check(c.version, word)
	}
	if name, isList := strings.CutSuffix(v.Format, "-list"); isList {
		if check, ok := formats()[name]; ok {
			for _, element := range splitList(word) {
				if err := check(c.version, element); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if name, optional := strings.CutSuffix(v.Format, "-opt"); optional && truthy(word) {
		if check, ok := formats()[name]; ok {
			return check(c.version, word)
		}
	}
	return nil
}

// splitList takes a list apart as PVE::Tools::split_list does: at NUL bytes if
// there is one, else at commas, semicolons and blanks.
func splitList(list string) []string {
	if !truthy(list) {
		return nil
	}
	if strings.Contains(list, "\x00") {
		return strings.Split(strings.TrimRight(list, "\x00"), "\x00")
	}
	return strings.FieldsFunc(list, func(r rune) bool {
		return strings.ContainsRune(",; \t\n\r\f\v", r)
	})
}
