package pveapi

import (
	"slices"
	"strconv"
	"strings"
)

// calendarWords are the calendar events that are a single word.
const calendarWords = " minutely hourly daily weekly monthly yearly annually quarterly semiannually semi-annually "

// checkCalendarEvent is pve_verify_calendar_event in PVE/CalendarEvent.pm: times as systemd writes them, parsed by
// proxmox-time (src/calendar_event.rs), whose messages name the unparsed part. Text after the last valid part is
// reported as a missing end; a first word has to be a day.
func checkCalendarEvent(word string) error {
	refused := func(text string) error { return died("invalid calendar event '" + word + "' - " + text + "\n") }
	event := strings.TrimSpace(word)
	if event == "" {
		return refused("unable to parse calendar event - event is empty")
	}
	misread := func(at, what string) error {
		return refused("unable to parse calendar event at '" + at + "' - " + what)
	}
	rest, ofDays := event, false
	if plain, utc := strings.CutSuffix(event, "UTC"); utc {
		rest = strings.TrimRight(plain, " ")
	}
	if strings.Contains(calendarWords, " "+rest+" ") && !strings.Contains(rest, " ") && rest != "" {
		return nil
	}
	if first := leading(rest, isLetter); first != "" {
		if !isWeekday(first) {
			return misread(first, `Context("weekday")`)
		}
		rest, ofDays = strings.TrimLeft(afterDays(rest), " \t"), true
	}
	after, dated := afterDate(rest)
	if dated {
		rest = strings.TrimLeft(after, " \t")
	}
	after, timed := afterTime(rest)
	switch {
	case timed:
		rest = after
	case !ofDays && !dated:
		return misread(rest, `Context("date or time specification")`)
	}
	if rest != "" {
		return misread(rest, "Nom(Eof)")
	}
	return nil
}

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// leading is the longest beginning of a text whose bytes are all of a kind.
func leading(text string, of func(b byte) bool) string {
	n := 0
	for n < len(text) && of(text[n]) {
		n++
	}
	return text[:n]
}

func isWeekday(word string) bool {
	word = strings.ToLower(word)
	return slices.ContainsFunc([]string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"},
		func(day string) bool { return word == day || word == day[:3] })
}

// afterDays returns the text after a list of days and of spans of days.
func afterDays(text string) string {
	day := func(text string) (rest string, ok bool) {
		name := leading(text, isLetter)
		return text[len(name):], isWeekday(name)
	}
	span := func(text string) (rest string, ok bool) {
		if rest, ok = day(text); !ok {
			return text, false
		}
		if last, between := strings.CutPrefix(rest, ".."); between {
			if after, ok := day(last); ok {
				return after, true
			}
		}
		return rest, true
	}
	rest, _ := listed(text, span)
	return rest
}

// listed returns the text after a list of at least one element. A comma that no element follows
// is not part of it.
func listed(text string, element func(text string) (rest string, ok bool)) (rest string, ok bool) {
	if rest, ok = element(text); !ok {
		return text, false
	}
	for {
		next, more := strings.CutPrefix(rest, ",")
		if !more {
			return rest, true
		}
		after, ok := element(next)
		if !ok {
			return rest, true
		}
		rest = after
	}
}

// number reads a number below a bound.
func number(text string, bound uint64) (n uint64, rest string, ok bool) {
	digits := leading(text, isDigit)
	n, err := strconv.ParseUint(digits, 10, 32)
	return n, text[len(digits):], err == nil && n < bound
}

// afterNumbers returns the text after the numbers of one part of a date or a time: any (*), one
// in so many, or a list of numbers and spans, each of which may be stepped through.
func afterNumbers(text string, bound uint64) (rest string, ok bool) {
	if after, every := strings.CutPrefix(text, "*"); every {
		if step, stepped := strings.CutPrefix(after, "/"); stepped {
			n, rest, ok := number(step, bound)
			if !ok || n > 0 {
				return rest, ok
			}
		}
		return after, true
	}
	return listed(text, func(text string) (string, bool) {
		from, rest, ok := number(text, bound)
		if !ok {
			return text, false
		}
		if last, between := strings.CutPrefix(rest, ".."); between {
			if to, after, ok := number(last, bound); ok {
				if from > to {
					return text, false
				}
				rest = after
			}
		}
		if step, stepped := strings.CutPrefix(rest, "/"); stepped {
			_, rest, ok = number(step, bound)
		}
		return rest, ok
	})
}

// afterDate returns the text after a date: [year-]month-day.
func afterDate(text string) (rest string, ok bool) {
	for _, bounds := range [][]uint64{{2200, 13, 32}, {13, 32}} {
		rest, ok = text, true
		for i, bound := range bounds {
			if i > 0 {
				rest, ok = strings.CutPrefix(rest, "-")
			}
			if ok {
				rest, ok = afterNumbers(rest, bound)
			}
			if !ok {
				break
			}
		}
		if ok {
			return rest, true
		}
	}
	return text, false
}

// afterTime returns the text after a time: [hour:]minute[:second].
func afterTime(text string) (rest string, ok bool) {
	rest = text
	if after, ok := afterNumbers(text, 24); ok {
		if minutes, ok := strings.CutPrefix(after, ":"); ok {
			rest = minutes
		}
	}
	if rest, ok = afterNumbers(rest, 60); !ok {
		return text, false
	}
	if seconds, more := strings.CutPrefix(rest, ":"); more {
		if after, ok := afterNumbers(seconds, 60); ok {
			return after, true
		}
	}
	return rest, true
}
