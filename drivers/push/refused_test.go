package push

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A program that did not report is tried again after an hour, also where the clock of the machine was a year ahead or behind then.
func TestS7ClockOfARefusedProgram(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for since, refused := range map[time.Duration]bool{
		0: true, -59 * time.Minute: true, -time.Hour: false, -365 * 24 * time.Hour: false, time.Minute: true, 365 * 24 * time.Hour: false,
	} {
		f := FoundAgent{program: "1", refused: "2", now: now, since: now.Add(since)}
		f.want.Program.Sum = "2"
		require.Equal(t, refused, f.Refused() != nil, "%s", since)
	}
}
