package perl

// A [Config] is the keys of a configuration file of Proxmox VE, or of one section of it. A
// value may be a property string (key=value,…); drives and mount points are such strings with
// a volume. The API table ([pveapi]) defines the keys and their formats.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Config is the content of a configuration file, or of one section of it.
type Config map[string]string

// Reread brings a section into the form in which it comes back from the file
// (parse_vm_config in PVE/QemuServer.pm): blanks around a value are lost, of an
// empty one a blank is left, an empty description is none. It returns what does not
// parse and is dropped: only the form of sshkeys takes an empty text, but no blank.
func (c Config) Reread(kind string, pending bool) (dropped Config) {
	for key, value := range c {
		if key == "description" && kind == "lxc" {
			// Every line of a container's ends with a line break, the last one too.
			if value = strings.TrimRight(value, "\n"); value == "" {
				delete(c, key)
				continue
			}
			c[key] = value + "\n"
			continue
		}
		if key == "description" {
			value = strings.TrimRight(value, " \t\r\n\f\v")
			if !pending && (value == "" || value == "0") {
				delete(c, key)
				continue
			}
			c[key] = value
			continue
		}
		if value = strings.TrimSpace(value); value == "" {
			if v, ok := ConfigParams[kind]().Param(key); ok && v.Format == "urlencoded" {
				delete(c, key)
				dropped = Config{key: ""}
				continue
			}
			value = " "
		}
		c[key] = value
	}
	return dropped
}

// ConfigParams describes the keys of a configuration, by the kind of guest.
var ConfigParams = map[string]func() *pveapi.Method{
	"qemu": sync.OnceValue(func() *pveapi.Method { return Method("POST /nodes/n/qemu") }),
	"lxc":  sync.OnceValue(func() *pveapi.Method { return Method("POST /nodes/n/lxc") }),
}

// KeyType is the declared type of a configuration key; "" for an unknown one.
func KeyType(kind, key string) string {
	switch key {
	case "lock", "digest", "meta":
		return "string"
	case "memory", "swap", "cores":
		if kind == "lxc" {
			return "integer"
		}
	}
	if v, ok := ConfigParams[kind]().Param(key); ok {
		return v.Type
	}
	return ""
}

// Typed is a configuration value as the API shows it: integers and booleans as
// numbers, all else as text, also what is declared a number (cpulimit).
func Typed(kind, key, value string) any {
	switch KeyType(kind, key) {
	case "integer", "boolean":
		if n, err := strconv.Atoi(value); err == nil {
			return n
		}
	}
	return value
}

// Canonical is a value as it is stored (check_type in PVE/QemuServer.pm).
func Canonical(kind, key, value string) string {
	switch KeyType(kind, key) {
	case "integer":
		if n, err := strconv.ParseInt(strings.TrimPrefix(value, "+"), 10, 64); err == nil {
			return strconv.FormatInt(n, 10)
		}
	case "boolean":
		switch strings.ToLower(value) {
		case "1", "on", "yes", "true":
			return "1"
		case "0", "off", "no", "false":
			return "0"
		}
	}
	return value
}

// Write prints a section as it is in the file. pending is that of waiting changes.
func (c Config) Write(b *strings.Builder, pending bool) {
	if description, ok := c["description"]; ok {
		switch {
		case description != "" && description != "0":
			for line := range strings.SplitSeq(strings.TrimRight(description, "\n"), "\n") {
				b.WriteString("#" + encodeText(line) + "\n")
			}
		case pending:
			b.WriteString("#\n")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if key != "description" {
			b.WriteString(key + ": " + c[key] + "\n")
		}
	}
}

// encodeText is how descriptions are written (encode_text in PVE/Tools.pm).
func encodeText(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '%' || c == ':' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// DigestOf is the digest of a file with sections.
func DigestOf(sections map[string]Config) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		b.WriteString(name + "\n")
		sections[name].Write(&b, false)
	}
	return SumOf(b.String())
}

// Section is one of a file as the API shows it.
func (c Config) Section(beside map[string]any) map[string]any {
	entry := maps.Clone(beside)
	for key, value := range c {
		entry[key] = value
		if slices.Contains(sectionNumbers, key) {
			entry[key] = Atoi(value)
		}
	}
	return entry
}

// sectionNumbers are the numeric options of sections.
var sectionNumbers = []string{
	"max_restart", "max_relocate", "failback", "nofailback", "restricted", "strict", "disable", "enabled", "all",
	"repeat-missed", "quiet", "stop", "stdexcludes", "remove", "protected", "bwlimit", "ionice", "lockwait", "maxfiles", "pigz", "stopwait", "zstd",
}

// TypedBy shows values in the types that the parameters of another method have.
func (c Config) TypedBy(name string) map[string]any {
	m := Method(name)
	entry := map[string]any{}
	for key, value := range c {
		entry[key] = value
		if v, ok := m.Param(key); ok && (v.Type == "integer" || v.Type == "boolean") {
			entry[key] = Atoi(value)
		}
	}
	return entry
}

// Parted is a property string, a parameter of a method, in its parts, of which all but booleans are text
// (parse_property_string in PVE/JSONSchema.pm).
func Parted(name, option, value string) any {
	v, _ := Method(name).Param(option)
	members, err := v.ParseProperty(value)
	if err != nil {
		return value
	}
	entry := map[string]any{}
	for name, text := range members {
		entry[name] = text
		if m := v.Members()[name]; m != nil && m.Type == "boolean" {
			entry[name] = Atoi(text)
		}
	}
	return entry
}

// Method finds a method of the API table by its name, "VERB /path".
func Method(name string) *pveapi.Method {
	verb, path, _ := strings.Cut(name, " ")
	m, _, _ := pveapi.Lookup(verb, path)
	return m
}
