package model

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseDuration is time.ParseDuration with days of 24 hours in front: 1d12h. The whole language uses it.
func ParseDuration(s string) (time.Duration, error) {
	days, rest, has := strings.Cut(s, "d")
	n, err := strconv.ParseUint(days, 10, 16) // 65535 days fit into a Duration
	if !has || err != nil {
		return time.ParseDuration(s)
	}
	length := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return length, nil
	}
	more, err := time.ParseDuration(rest)
	if more < 0 || more > math.MaxInt64-length {
		err = strconv.ErrSyntax
	}
	return length + more, err
}

// ShortDuration writes 10m for 10m0s.
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
