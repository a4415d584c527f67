package model

import (
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Notify says where messages about incidents are sent, or the statuses of commits.
type Notify struct {
	Name   string        `hcl:"name,label"`
	Type   NotifyType    `hcl:"type" doc:"webhook, ntfy, slack (also Mattermost, and Discord with /slack), matrix, smtp or alertmanager for messages; github, gitlab, gitea (also Forgejo) or bitbucket for statuses of commits."`
	To     string        `hcl:"to" doc:"URL to send to, of ntfy with the topic; matrix: ID of the room; smtp: addresses, separated by commas; statuses: URL of the repository for browsers. May be a secret, and must be one for slack."`
	Secret string        `hcl:"secret,optional" secret:"true" doc:"webhook: key that signs; smtp: password; else a token, or USER:PASSWORD for ntfy and alertmanager."`
	Server string        `hcl:"server,optional" doc:"matrix: URL of the homeserver; smtp: smtp://HOST:PORT for STARTTLS, or smtps://HOST:PORT."`
	User   string        `hcl:"user,optional" doc:"smtp: user of the password (default: from)."`
	From   string        `hcl:"from,optional" doc:"smtp: address of the sender."`
	CA     string        `hcl:"ca,optional" doc:"File of the site with the server's CA certificate (PEM; default: the system's)."`
	On     []string      `hcl:"on,optional" doc:"Conditions: failed, drift, refused, expiring, and recovered for a message when each ends (default: all)."`
	Hosts  []string      `hcl:"hosts,optional" doc:"Hosts and pve nodes that count (default: all)."`
	After  int           `hcl:"after,optional" doc:"Consecutive passes with a condition before it is sent; for hosts below, reports count."`
	Remind time.Duration `hcl:"remind,optional" doc:"Time between reminders while a condition lasts (default: none)."`
	Flap   time.Duration `hcl:"flap,optional" doc:"A condition that recurs within this time is sent once more, and recovers only after that long without it."`

	At      diag.Range
	Missing []string // secrets whose value is not known here
	CAPEM   []byte   // contents of the file CA
}

// NotifyType is how a notify sends.
type NotifyType string

// Types of Notify that set statuses of commits.
const (
	NotifyGitHub    NotifyType = "github"
	NotifyGitLab    NotifyType = "gitlab"
	NotifyGitea     NotifyType = "gitea"
	NotifyBitbucket NotifyType = "bitbucket"
)

// Types of Notify that send messages.
const (
	NotifyWebhook      NotifyType = "webhook"
	NotifyNtfy         NotifyType = "ntfy"
	NotifySlack        NotifyType = "slack"
	NotifyMatrix       NotifyType = "matrix"
	NotifySMTP         NotifyType = "smtp"
	NotifyAlertmanager NotifyType = "alertmanager"
)

// Recovered is the entry of Notify.On for messages about the end of a condition.
const Recovered = "recovered"

// OfCommits reports whether it sets statuses of commits.
func (n *Notify) OfCommits() bool {
	return slices.Contains([]NotifyType{NotifyGitHub, NotifyGitLab, NotifyGitea, NotifyBitbucket}, n.Type)
}

// Reports reports whether there are messages about a condition, or Recovered.
func (n *Notify) Reports(condition string) bool {
	return len(n.On) == 0 || slices.Contains(n.On, condition)
}

// Covers reports whether a host counts.
func (n *Notify) Covers(host string) bool {
	return len(n.Hosts) == 0 || slices.Contains(n.Hosts, host)
}
