package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// auditPolicy logs every finished request for an object but the API server's own, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  nonResourceURLs: ["*"]
- level: Metadata
`

// Mark is a point in time of the audit log.
type Mark int64

// Request is one request that the API server has finished, as its audit log has it. A watch is finished when it ends.
type Request struct {
	// Time of its arrival.
	Time time.Time
	// User is the user's name: AdminUser, or system:serviceaccount:<namespace>:<name>.
	User string
	// Agent is the client's User-Agent.
	Agent string
	// Verb: get, list, watch, create, update, patch, delete, deletecollection.
	Verb string
	// Group, Resource and Subresource asked for, the resource in plural.
	Group, Resource, Subresource string
	// Namespace and Name of the object.
	Namespace, Name string
	// Code is the HTTP status of the answer.
	Code int
}

// Write tells whether the request was to change something, with success or not.
func (r Request) Write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

// String is a line for people: "patch proxyservers.hostedcluster.densityops.com/status clusters/a by system:serviceaccount:… (200)".
func (r Request) String() string {
	resource := r.Resource
	if r.Group != "" {
		resource += "." + r.Group
	}
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	return fmt.Sprintf("%s %s %s/%s by %s (%d)", r.Verb, resource, r.Namespace, r.Name, r.User, r.Code)
}

// auditEvent is what is read of a line of the log.
type auditEvent struct {
	Verb                     string    `json:"verb"`
	UserAgent                string    `json:"userAgent"`
	RequestReceivedTimestamp time.Time `json:"requestReceivedTimestamp"`
	User                     struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

func (c *ControlPlane) auditLog() string { return filepath.Join(c.folder, "audit.log") }

// auditLines is what the audit log holds, without a last line that is still being written.
func (c *ControlPlane) auditLines() ([]byte, error) {
	log, err := os.ReadFile(c.auditLog())
	return log[:bytes.LastIndexByte(log, '\n')+1], err
}

// Mark is the present end of the audit log. A request that is being written to it comes after the mark.
func (c *ControlPlane) Mark() (Mark, error) {
	log, err := c.auditLines()
	return Mark(len(log)), err
}

// Requests are those that were finished after a mark (0: all), in that order. The log is written just after the answer.
func (c *ControlPlane) Requests(since Mark) ([]Request, error) {
	log, err := c.auditLines()
	if err != nil {
		return nil, err
	}
	if since > Mark(len(log)) {
		return nil, fmt.Errorf("the audit log has %d bytes, and the mark is at %d", len(log), since)
	}
	var requests []Request
	for line := range bytes.Lines(log[since:]) {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		requests = append(requests, Request{
			Time: e.RequestReceivedTimestamp, User: e.User.Username, Agent: e.UserAgent, Verb: e.Verb,
			Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, Code: e.ResponseStatus.Code,
		})
	}
	return requests, nil
}
