package wire

// What a parent asks of a child: to run a command, or to make a plan. A child opens every connection, so tasks wait in a
// queue of the parent until the child takes them.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of tasks.
const (
	maxTask       = 32 << 10                       // bytes of one, as JSON
	MaxTasks      = 64                             // that wait for one child
	MaxTaskOutput = 64 << 10                       // bytes of the output that are kept: the last ones
	MaxTaskPlan   = 4 << 20                        // bytes of the document of a plan
	MaxTaskList   = MaxTasks * (2*maxTask + 4<<10) // of the answer with all of them
)

// TaskKind is what a task asks for.
type TaskKind string

// The kinds of tasks.
const (
	TaskRun  TaskKind = "run"  // a command on a node
	TaskPlan TaskKind = "plan" // the plan of a host, made by its own agent
)

// Task is something that a parent asks of a child. It is carried out at most once.
type Task struct {
	ID      string    `json:"id"` // 32 hexadecimal digits; another task has another one
	Kind    TaskKind  `json:"kind"`
	For     string    `json:"for"`  // the child in whose queue it is
	Node    string    `json:"node"` // that it is about: the child, or a node below it
	Command []string  `json:"command,omitempty"`
	Timeout int       `json:"timeout_seconds,omitempty"` // of the command
	Expires time.Time `json:"expires"`                   // after that it is not begun any more
	Job     string    `json:"job,omitempty"`             // of the site; "" if a person asked
	// Attributes is the address of which a plan lists all attributes; "" for none.
	Attributes string `json:"attributes,omitempty"`
	By         string `json:"by"` // USER@HOST, or the name of an agent
}

// TaskOutcome is how a task ended.
type TaskOutcome string

// The outcomes of tasks.
const (
	TaskDone    TaskOutcome = "done"    // a command exited with 0, a plan was made
	TaskFailed  TaskOutcome = "failed"  // it exited with another code, or by a signal, or did not start
	TaskTimeout TaskOutcome = "timeout" // it was ended after its time
	TaskUnknown TaskOutcome = "unknown" // it was begun, and how it ended is not known; it is not run again
	TaskExpired TaskOutcome = "expired" // it was not begun in time
)

// TaskResult is the result of a task.
type TaskResult struct {
	ID      string          `json:"id"`
	Node    string          `json:"node"`
	Outcome TaskOutcome     `json:"outcome"`
	Code    int             `json:"exit_code"`     // -1: there is none
	Output  string          `json:"output"`        // the end of both outputs of the command
	Cut     bool            `json:"cut,omitempty"` // there was more before that
	Error   string          `json:"error,omitempty"`
	Began   time.Time       `json:"began"`
	Seconds float64         `json:"duration_seconds"`
	Plan    json.RawMessage `json:"plan,omitempty"` // the document of a plan
}

// NewTaskID makes an ID of what a task is about. Equal parts give the same ID, so that a task that is put into a queue
// twice counts once. Without parts it is random.
func NewTaskID(parts ...string) string {
	if len(parts) == 0 {
		var b [16]byte
		_, _ = rand.Read(b[:]) // it never fails (crypto/rand)
		return hex.EncodeToString(b[:])
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

var taskID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Check says why a task cannot be one; nil if it can.
func (t *Task) Check() error {
	size, err := json.Marshal(t)
	switch {
	case err != nil:
		return err
	case !taskID.MatchString(t.ID):
		return errors.New("the task has no ID")
	case !label().MatchString(t.For) || !label().MatchString(t.Node):
		return errors.New("the task names no node")
	case t.Expires.IsZero():
		return errors.New("the task does not say until when it counts")
	case len(size) > maxTask:
		return fmt.Errorf("the task has %d bytes, %d are the most", len(size), maxTask)
	}
	switch t.Kind {
	case TaskPlan:
		return nil
	case TaskRun:
		switch {
		case len(t.Command) == 0 || t.Command[0] == "":
			return errors.New("the task has no command")
		case slices.ContainsFunc(t.Command, func(arg string) bool { return strings.ContainsRune(arg, 0) }):
			return errors.New("an argument of the command has a NUL byte in it")
		case t.Timeout <= 0:
			return errors.New("the task does not say how long its command may run")
		}
		return nil
	default:
		return fmt.Errorf("the task is of the unknown kind %.40q", t.Kind)
	}
}

// Check says why a result cannot be the one of a task; nil if it can.
func (r *TaskResult) Check() error {
	outcomes := []TaskOutcome{TaskDone, TaskFailed, TaskTimeout, TaskUnknown, TaskExpired}
	switch {
	case !taskID.MatchString(r.ID):
		return errors.New("the result names no task")
	case !slices.Contains(outcomes, r.Outcome):
		return fmt.Errorf("the result has the unknown outcome %.40q", r.Outcome)
	case len(r.Output) > MaxTaskOutput || len(r.Error) > MaxTaskOutput:
		return fmt.Errorf("the result has more than %d bytes of output", MaxTaskOutput)
	case len(r.Plan) > MaxTaskPlan:
		return fmt.Errorf("the plan has more than %d bytes", MaxTaskPlan)
	}
	return nil
}

// QueueQuery is added to the path of a long poll by those who take tasks.
const QueueQuery = "queue"

// TaskList is the answer to GET /queue/{identity}.
type TaskList struct {
	Version int          `json:"version"` // 1
	Tasks   []SignedTask `json:"tasks"`
}

// SignedTask is a task with the signature of the parent, by the key that its children know by its pin. A copy of it counts
// for no other child, and not after it expired.
type SignedTask struct {
	Task      []byte `json:"task"`      // the JSON document
	Key       []byte `json:"key"`       // public, SPKI in DER
	Signature []byte `json:"signature"` // over taskDomain and the document
}

// taskDomain comes before what is signed, so that no other signature of the key passes as one of a task.
const taskDomain = "homestak-gitops task\n"

// Sign signs the task.
func (t *Task) Sign(key crypto.Signer) (SignedTask, error) {
	document, err := json.Marshal(t)
	if err != nil {
		return SignedTask{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return SignedTask{}, fmt.Errorf("sign a task: %w", err)
	}
	text := append([]byte(taskDomain), document...)
	var signature []byte
	if _, is := key.Public().(ed25519.PublicKey); is {
		signature, err = key.Sign(rand.Reader, text, crypto.Hash(0))
	} else {
		sum := sha256.Sum256(text)
		signature, err = key.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	if err != nil {
		return SignedTask{}, fmt.Errorf("sign a task: %w", err)
	}
	return SignedTask{document, public, signature}, nil
}

// Open gives the task, if a key with one of the pins signed it and it is for this child.
func (s SignedTask) Open(pins []Pin, identity string) (Task, error) {
	if !slices.Contains(pins, Pin(sha256.Sum256(s.Key))) {
		return Task{}, errors.New("a task is signed by a key that is not that of the parent")
	}
	if !s.verified() {
		return Task{}, errors.New("the signature of a task is not valid")
	}
	var t Task
	if err := json.Unmarshal(s.Task, &t); err != nil {
		return Task{}, errors.New("a task is not the JSON document that it should be")
	}
	if t.For != identity {
		return Task{}, fmt.Errorf("a task is for %.80q", t.For)
	}
	return t, t.Check()
}

func (s SignedTask) verified() bool {
	public, err := x509.ParsePKIXPublicKey(s.Key)
	if err != nil {
		return false
	}
	text := append([]byte(taskDomain), s.Task...)
	sum := sha256.Sum256(text)
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], s.Signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], s.Signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, text, s.Signature)
	default:
		return false
	}
}

// ReadTasks reads the answer of a parent. A task that is not valid does not keep the others from being read: the error is
// about those that are left out.
func ReadTasks(body []byte, pins []Pin, identity string) ([]Task, error) {
	var list TaskList
	if err := json.Unmarshal(body, &list); err != nil || list.Version != 1 {
		return nil, errors.New("the answer is not a list of tasks that this program reads")
	}
	var out []Task
	var errs []error
	for _, s := range list.Tasks[:min(len(list.Tasks), MaxTasks)] {
		t, err := s.Open(pins, identity)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, t)
	}
	return out, errors.Join(errs...)
}

// Asking is what a person asks an agent for: a command on nodes, or the plans of hosts.
type Asking struct {
	Kind     TaskKind `json:"kind"`
	Nodes    []string `json:"nodes"`
	Manifest string   `json:"manifest,omitempty"` // in place of names: nodes below the agent
	Spec     string   `json:"spec,omitempty"`
	Command  []string `json:"command"`
	Timeout  int      `json:"timeout_seconds"`
	Wait     int      `json:"wait_seconds"` // until nodes begin; then they are not asked any more
	Parallel int      `json:"parallel"`
	By       string   `json:"by"` // USER@HOST

	Attributes string `json:"attributes,omitempty"` // see Task
}
