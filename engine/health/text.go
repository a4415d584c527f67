package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	most     = 1024 // bytes of a detail
	mostLine = 200  // bytes of a first line
	minimum  = 4    // shorter secrets are in any text by chance
)

// show makes a result safe to display: without secrets and terminal control sequences, and short.
func (s *Subject) show(c *model.Check, saw string) string {
	if c.Sensitive {
		return "the result is not shown, because the check uses a secret"
	}
	return cut(diag.Line(s.redact(saw)), most)
}

// redact removes secrets. It runs before any cut, which could leave half of one.
func (s *Subject) redact(text string) string {
	secrets := slices.Clone(s.Secrets)
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, v := range secrets {
		if len(v) >= minimum {
			text = strings.ReplaceAll(text, v, model.Sensitive)
		}
	}
	return text
}

// redactEnd removes the beginning of a secret at the end of a text.
func (s *Subject) redactEnd(text string) string {
	longest := 0
	for _, v := range s.Secrets {
		for n := min(len(v)-1, len(text)); n >= minimum && n > longest; n-- {
			if strings.HasSuffix(text, v[:n]) {
				longest = n
			}
		}
	}
	if longest == 0 {
		return text
	}
	return text[:len(text)-longest] + model.Sensitive
}

// cut bounds a text, at the end of a character.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	end := bytes
	for end > 0 && text[end]&0xc0 == 0x80 {
		end--
	}
	return text[:end] + "…"
}

// line is the first line of a response with content. If the text has no complete line, it may be truncated and end
// in part of a secret.
func (s *Subject) line(text string) string {
	if !strings.HasSuffix(text, "\n") {
		text = s.redactEnd(text)
	}
	first, _, _ := strings.Cut(strings.TrimLeft(s.redact(text), " \t\r\n"), "\n")
	return cut(diag.Line(first), mostLine)
}

// short formats a duration for people.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	default:
		return d.Round(time.Second).String()
	}
}
