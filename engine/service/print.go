package service

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// Text is the configuration as an agent.hcl, with the source of each value in a comment. Unset values are comments.
// Files are named but not read, so it has no secrets.
func (c *Config) Text() string {
	var b strings.Builder
	file := cmp.Or(c.File, "none")
	fmt.Fprintf(&b, "# what holds for the agent of this machine; file: %s\n", file)
	c.block(&b, "", reflect.ValueOf(&c.AgentFile).Elem())
	out, _ := hcl.Format([]byte(b.String()), "agent.hcl")
	return string(out)
}

func (c *Config) block(b *strings.Builder, prefix string, v reflect.Value) {
	for _, f := range model.Fields(v.Type()) {
		path, field := prefix+f.Name, v.Field(f.Index)
		switch {
		case f.Block:
			fmt.Fprintf(b, "%s {\n", f.Name)
			c.block(b, path+".", field.Elem())
			fmt.Fprint(b, "}\n")
		case field.IsZero() && c.from[path] == "":
			fmt.Fprintf(b, "# %s is not set\n", f.Name)
		default:
			from := cmp.Or(c.from[path], "default")
			fmt.Fprintf(b, "%s = %s # %s\n", f.Name, literal(field), from)
		}
	}
}

// literal writes a value as the language has it.
func literal(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		text := value.String()
		for _, zero := range []string{"m0s", "h0m"} { // 1h rather than 1h0m0s
			if strings.HasSuffix(text, zero) {
				text = text[:len(text)-2]
			}
		}
		return strconv.Quote(text)
	case []string:
		quoted := make([]string, len(value))
		for i, s := range value {
			quoted[i] = quoteText(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case string:
		return quoteText(value)
	default:
		return fmt.Sprint(value)
	}
}

// quoteText quotes a text; a dollar or percent sign before a brace would begin a
// template.
func quoteText(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}
