package model

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Job is a command that nodes run on a schedule, or once.
type Job struct {
	Name        string        `hcl:"name,label"`
	Nodes       []string      `hcl:"nodes" doc:"Nodes and hosts that run it; node.NAME is all instances of count or for_each."`
	Command     []string      `hcl:"command" doc:"Program and arguments, without a shell. It runs as root, on a host as the user of its agent."`
	Schedule    string        `hcl:"schedule,optional" doc:"When it runs: \"every 15m\", or five fields of cron, such as \"30 3 * * 1-5\", in the site's time zone. After an outage it runs once."`
	Once        string        `hcl:"once,optional" doc:"In place of schedule: an ID such as \"2026-11-27-rotate\", under which each node runs it once."`
	Timeout     time.Duration `hcl:"timeout,optional" doc:"Time limit on a node."`
	OnFailure   string        `hcl:"on_failure,optional" doc:"continue, or stop: nodes that have not begun do not run it."`
	Concurrency int           `hcl:"concurrency,optional" doc:"Nodes of a host that run it at once."`

	At diag.Range
}

// shortestEvery is the shortest interval of a schedule.
const shortestEvery = time.Minute

// CheckSchedule says why a job has no times; nil if it has, or runs once.
func (j *Job) CheckSchedule(zone string) error {
	switch {
	case j.Schedule == "" && j.Once == "":
		return errors.New("it has neither schedule nor once")
	case j.Schedule != "" && j.Once != "":
		return errors.New("it has both schedule and once")
	case j.Schedule == "":
		return nil
	}
	_, err := schedule(j.Schedule, zone)
	return err
}

// Next is when a job with a schedule is due first after a time; zero: never.
func (j *Job) Next(after time.Time, zone string) time.Time {
	next, err := schedule(j.Schedule, zone)
	if err != nil {
		return time.Time{}
	}
	return next(after)
}

// schedule reads one. Intervals begin at the Unix epoch, so that a restart does not move them.
func schedule(text, zone string) (next func(time.Time) time.Time, err error) {
	if every, is := strings.CutPrefix(text, "every "); is {
		d, err := ParseDuration(strings.TrimSpace(every))
		if err != nil || d < shortestEvery {
			return nil, fmt.Errorf("schedule %q is not an interval of a minute or more, such as every 15m", text)
		}
		return func(after time.Time) time.Time { return after.Truncate(d).Add(d) }, nil
	}
	if strings.HasPrefix(text, "@every") || strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ=") {
		return nil, fmt.Errorf("schedule %q: write every 15m, or five fields in the time zone of the site", text)
	}
	at, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("schedule %q is neither an interval nor five fields as of cron: %w", text, err)
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		location = time.UTC // the check of the time zone reports it
	}
	return func(after time.Time) time.Time { return at.Next(after.In(location)).UTC() }, nil
}
