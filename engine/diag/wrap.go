package diag

import (
	"strings"
	"unicode/utf8"
)

// Wrap breaks the lines of a text that are longer than width characters at their spaces. Continuation lines are
// indented by two more. Text to copy stays in one line: a line with JSON, a command in backticks, a word that is
// longer than a line with the word before it. Colours have no width. Width 0 changes nothing.
func Wrap(text string, width int) string {
	if width <= 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if columns(line) > width && !strings.Contains(line, `{"`) {
			lines[i] = fold(line, width)
		}
	}
	return strings.Join(lines, "\n")
}

// columns returns the number of visible characters of a text: all but those of colours.
func columns(s string) int {
	n := 0
	for s != "" {
		before, after, colored := strings.Cut(s, "\x1b[")
		n += utf8.RuneCountInString(before)
		if _, s, _ = strings.Cut(after, "m"); !colored {
			break
		}
	}
	return n
}

// fold breaks one line.
func fold(line string, width int) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))] + "  "
	var b strings.Builder
	at := 0
	for rest := line; rest != ""; {
		start := len(rest) - len(strings.TrimLeft(rest, " "))
		end := start + wordEnd(rest[start:])
		word := rest[:end] // with the spaces before it
		rest = rest[end:]
		n := columns(word)
		if at > 0 && at+n > width && n <= width && strings.TrimLeft(word, " ") != "" {
			word = indent + strings.TrimLeft(word, " ")
			n, at = columns(word), 0
			b.WriteByte('\n')
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// wordEnd returns the end of the first word of a text. Text between two backticks is part of one word.
func wordEnd(s string) int {
	for i, quoted := 0, false; i < len(s); i++ {
		switch {
		case s[i] == '`':
			quoted = !quoted && strings.Contains(s[i+1:], "`")
		case s[i] == ' ' && !quoted:
			return i
		}
	}
	return len(s)
}
