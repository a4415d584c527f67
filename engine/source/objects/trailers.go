package objects

import "strings"

// parseTrailers reads the trailers of a commit's message as git does: they are
// lines "Key: value" in the last paragraph, which must not be the only one, and
// which holds nothing else, or has a line that git itself writes and one in four are
// trailers. A line that begins with a space continues the one before.
//
// If a key comes twice, the last one counts. Keys are returned as they are written.
func parseTrailers(message string) map[string]string {
	lines := strings.SplitAfter(message, "\n")
	lines = trailerBlock(lines[:messageEnd(lines)])
	out := map[string]string{}
	for i := 0; i < len(lines); {
		next := i + 1
		at := separator(lines[i])
		for at >= 1 && next < len(lines) && beginsWithSpace(lines[next]) {
			next++
		}
		if at >= 1 && lines[i][0] != '#' {
			key := trim(lines[i][:at])
			out[key] = unfold(strings.Join(lines[i:next], "")[at+1:])
		}
		i = next
	}
	return out
}

// messageEnd leaves out what stands below the message: blank lines, comments, the
// list of conflicts that old versions of git wrote, and what is under a scissors line.
func messageEnd(lines []string) int {
	conflicts, end := false, -1 // end: of the message, if nothing but such lines follow
	for i, l := range lines {
		switch {
		case l == "":
			continue
		case l == "# ------------------------ >8 ------------------------\n":
			if end >= 0 {
				return end
			}
			return i
		case l[0] == '#' || l[0] == '\n':
		case l == "Conflicts:\n":
			conflicts = true
		case conflicts && l[0] == '\t':
			continue
		default:
			conflicts, end = false, -1
			continue
		}
		if end < 0 {
			end = i
		}
	}
	if end < 0 {
		return len(lines)
	}
	return end
}

// trailerBlock gives the lines of the last paragraph if they are trailers.
func trailerBlock(lines []string) []string {
	title := 0
	for title < len(lines) && (strings.HasPrefix(lines[title], "#") || !blank(lines[title])) {
		title++
	}
	trailers, others, maybe, known, empty := 0, 0, 0, false, true
	for i := len(lines) - 1; i >= title; i-- {
		l := lines[i]
		if l == "" {
			continue // what SplitAfter leaves behind the last newline
		}
		switch {
		case l[0] == '#':
			others, maybe = others+maybe, 0
			continue
		case blank(l):
			if empty {
				continue
			}
			others += maybe
			if known && trailers*3 >= others || trailers > 0 && others == 0 {
				return lines[i+1:]
			}
			return nil
		}
		empty = false
		switch {
		case strings.HasPrefix(l, "Signed-off-by: "), strings.HasPrefix(l, "(cherry picked from commit "):
			trailers, maybe, known = trailers+1, 0, true
		case beginsWithSpace(l):
			maybe++
		case separator(l) >= 1:
			trailers, maybe = trailers+1, 0
		default:
			others, maybe = others+maybe+1, 0
		}
	}
	return nil
}

// separator finds the colon behind a key of letters, digits and dashes, which spaces
// may follow; -1 if there is none.
func separator(line string) int {
	spaces := false
	for i := range len(line) {
		c := line[i]
		switch {
		case c == ':':
			return i
		case !spaces && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'):
		case i > 0 && (c == ' ' || c == '\t'):
			spaces = true
		default:
			return -1
		}
	}
	return -1
}

// unfold makes one line of a value: a newline and the spaces after it are one space.
func unfold(value string) string {
	var b strings.Builder
	value = trim(value)
	for {
		before, after, more := strings.Cut(value, "\n")
		b.WriteString(before)
		if !more {
			return trim(b.String())
		}
		b.WriteByte(' ')
		value = strings.TrimLeft(after, whitespace)
	}
}

// whitespace is git's, and beginsWithSpace its isspace.
const whitespace = " \t\r\n"

func trim(s string) string { return strings.Trim(s, whitespace) }

func blank(line string) bool { return trim(line) == "" }

func beginsWithSpace(line string) bool {
	return line != "" && strings.IndexByte(whitespace, line[0]) >= 0
}
