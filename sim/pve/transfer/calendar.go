package transfer

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// calendarWords are calendar events with a name (proxmox-time, in systemd's manner).
var calendarWords = map[string]string{
	"minutely": "*:*", "hourly": "*:00", "daily": "00:00", "weekly": "mon 00:00",
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// nextRun is when a calendar event comes next: [DAYS ]HOURS[:MINUTES], each a list of
// numbers, ranges (8..17), steps (*/15) or *. Events with dates are not understood.
func nextRun(schedule string, now time.Time) (at time.Time, ok bool) {
	text := strings.ToLower(strings.TrimSpace(schedule))
	if plain := calendarWords[text]; plain != "" {
		text = plain
	}
	days, clock := weekdays, text
	if first, rest, two := strings.Cut(text, " "); two || text != "" && text[0] >= 'a' && text[0] <= 'z' {
		if days, ok = dayList(first); !ok {
			return at, false
		}
		if clock = strings.TrimSpace(rest); !two {
			clock = "00:00"
		}
	}
	hourText, minuteText, both := strings.Cut(clock, ":")
	if !both { // A single field is the minutes.
		hourText, minuteText = "*", clock
	}
	hours, okHours := numberList(hourText, 24)
	minutes, okMinutes := numberList(minuteText, 60)
	if !okHours || !okMinutes {
		return at, false
	}
	const week = 8 * 24 * 60 // In minutes, and a day more.
	at = now.UTC().Truncate(time.Minute)
	for range week {
		at = at.Add(time.Minute)
		if hours[at.Hour()] && minutes[at.Minute()] && slices.Contains(days, weekdays[at.Weekday()]) {
			return at, true
		}
	}
	return at, false
}

// dayList reads "mon", "mon,fri" and "mon..fri".
func dayList(text string) (days []string, ok bool) {
	index := func(day string) int {
		return slices.IndexFunc(weekdays, func(short string) bool { return strings.HasPrefix(day, short) })
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, between := strings.Cut(part, "..")
		if !between {
			to = from
		}
		i, last := index(from), index(to)
		if i < 0 || last < 0 {
			return nil, false
		}
		for ; i != last; i = (i + 1) % len(weekdays) {
			days = append(days, weekdays[i])
		}
		days = append(days, weekdays[last])
	}
	return days, true
}

// numberList reads one field of a time of day: which numbers below a bound it has.
func numberList(text string, bound int) (has map[int]bool, ok bool) {
	has = map[int]bool{}
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step, err := strconv.Atoi(stepText)
		if stepped && (err != nil || step < 1) {
			return nil, false
		}
		step = max(step, 1)
		fromText, toText, between := strings.Cut(span, "..")
		from, err := strconv.Atoi(fromText)
		to := from
		switch {
		case span == "*":
			from, to = 0, bound-1
		case err != nil:
			return nil, false
		case between:
			if to, err = strconv.Atoi(toText); err != nil {
				return nil, false
			}
		case stepped:
			to = bound - 1
		}
		if from < 0 || to >= bound {
			return nil, false
		}
		for n := from; n <= to; n += step {
			has[n] = true
		}
	}
	return has, true
}
