-- explsched in slurmctld: hands what `sbatch --expl-...` said to the scheduler, through the job's comment.
--
-- Copy to the directory of slurm.conf, with JobSubmitPlugins=lua there. A site that has a job_submit.lua already calls
-- explsched_submit(job) from its own slurm_job_submit and returns what that returns unless it is slurm.SUCCESS.
-- slurmctld holds its locks while this runs: no files, no commands, no network.

local PREFIX = "explsched:"

-- What the SPANK plugin has put into the job's control environment, or nil.
local function given(job)
    for _, entry in pairs(job.spank_job_env or {}) do
        local query = entry:match("^EXPLSCHED_OPTIONS=(.+)$") or entry:match("^SPANK_EXPLSCHED_OPTIONS=(.+)$")
        if query then
            return query
        end
    end
    return nil
end

-- Whether the comment says all of it already: sxbatch writes it there, and sets the variables of the options, too.
local function is_said(comment, query)
    local said = "&" .. ((" " .. comment):match(" " .. PREFIX .. "(%S*)") or "") .. "&"
    for pair in query:gmatch("[^&]+") do
        if not said:find("&" .. pair .. "&", 1, true) then
            return false
        end
    end
    return true
end

local function refuse(text)
    slurm.log_user("explsched: " .. text)
    return slurm.ERROR
end

function explsched_submit(job)
    local query = given(job)
    if not query then
        return slurm.SUCCESS
    end
    local comment = job.comment or ""
    local has_word = (" " .. comment):find(" " .. PREFIX, 1, true)
    if has_word and not is_said(comment, query) then
        return refuse("the comment has options (" .. PREFIX .. "...) and so has the command line: give them in one place")
    end
    local checkpoint = query:match("checkpoint=(%w+)")
    if checkpoint and job.requeue == 0 then
        return refuse("--expl-checkpoint=" .. checkpoint .. " with --no-requeue: a job that is preempted must be requeued")
    end
    if checkpoint then
        job.requeue = 1
    end
    if not has_word then
        job.comment = PREFIX .. query .. (comment ~= "" and " " .. comment or "")
    end
    return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, user)
    return explsched_submit(job)
end

function slurm_job_modify(change, job, partitions, user)
    return slurm.SUCCESS
end

return slurm.SUCCESS
